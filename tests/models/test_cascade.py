"""A turn-based model out of simulated parts: hearing, turns, and the context of an answer."""

import math
import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from engine.models.base import (
    Heard,
    IdleTimeout,
    Message,
    SessionSetup,
    Signal,
    SpeechPaused,
    SpeechStarted,
    SpeechStopped,
    TurnDetection,
)
from engine.models.caller import Caller
from engine.models.cascade import Cascade
from engine.models.registry import ModelSettings, build_model
from engine.speech.ports import Samples

_PUSH_TO_TALK = SessionSetup(turn_detection=TurnDetection(enabled=False))
_TICK = 7680  # bytes of 160 ms at 24 kHz


def sound(seconds: float, rate: int = 24_000) -> bytes:
    wave = 0.3 * np.sin(2 * np.pi * 300 * np.arange(round(seconds * rate)) / rate)
    return (wave * 32767).astype("<i2").tobytes()


def quiet(seconds: float, rate: int = 24_000) -> bytes:
    return bytes(2 * round(seconds * rate))


@pytest.fixture
def model() -> Cascade:
    built = build_model(ModelSettings(id="sim"))
    assert isinstance(built, Cascade)
    return built


def hear(model: Cascade, caller: Caller, pcm: bytes, tick: int = _TICK) -> list[Signal]:
    ticks = [pcm[at : at + tick] for at in range(0, len(pcm), tick)]
    return [s for piece in ticks for s in model.hear([(caller, piece)])[0].signals]


def test_a_spoken_turn(model: Cascade) -> None:
    """A second of speech is told as started, paused and stopped, and its audio is what was said."""
    caller = model.open(SessionSetup())
    signals = hear(model, caller, quiet(1) + sound(1) + quiet(1))
    assert signals == [SpeechStarted(692), SpeechPaused(2016), SpeechStopped(2016, 2528)]
    turn = model.utterance(caller, cut=True)
    assert turn is not None
    assert (turn.start_ms, turn.stop_ms) == (692, 2216)
    assert turn.voiced_ms == 1024
    assert model.transcribe(turn) == "speech lasting one point zero seconds"
    assert model.utterance(caller, cut=False) is None


def test_the_turn_in_the_pause_is_the_turn_at_the_end(model: Cascade) -> None:
    """What is transcribed on speculation is exactly what the turn turns out to be."""
    caller = model.open(SessionSetup())
    hear(model, caller, sound(1) + quiet(0.3))
    guess = model.utterance(caller, cut=False)
    hear(model, caller, quiet(0.5))
    assert guess == model.utterance(caller, cut=True)


def test_speech_that_resumes_changes_the_turn(model: Cascade) -> None:
    """A pause that was none shows in the amount of speech."""
    caller = model.open(SessionSetup())
    hear(model, caller, sound(1) + quiet(0.3))
    guess = model.utterance(caller, cut=False)
    hear(model, caller, sound(0.5) + quiet(0.6))
    turn = model.utterance(caller, cut=True)
    assert guess is not None
    assert turn is not None
    assert turn.voiced_ms > guess.voiced_ms


def test_turns_wait_to_be_taken(model: Cascade) -> None:
    """Two turns heard in one go are both there, in order, also when a third has begun."""
    caller = model.open(SessionSetup())
    pcm = sound(1) + quiet(1) + sound(2) + quiet(1) + sound(0.5)
    signals = hear(model, caller, pcm, tick=len(pcm))
    assert [type(s) for s in signals if not isinstance(s, SpeechPaused)] == [
        *(SpeechStarted, SpeechStopped) * 2,
        SpeechStarted,
    ]
    turns = [model.utterance(caller, cut=True) for _ in range(3)]
    said = [model.transcribe(turn) for turn in turns if turn is not None]
    assert said == [
        f"speech lasting {n} seconds"
        for n in ("one point zero", "two point zero", "zero point five")
    ]


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000])
def test_positions_do_not_depend_on_rate_or_chunks(model: Cascade, rate: int) -> None:
    """The same call at any rate, in chunks of any size, gives the same turn within a frame."""
    pcm = quiet(0.5, rate) + sound(1, rate) + quiet(1, rate)
    for tick in (rate // 50 * 2, 2 * 1234, len(pcm)):
        caller = model.open(SessionSetup(input_rate=rate))
        signals = hear(model, caller, pcm, tick)
        assert [type(s) for s in signals] == [SpeechStarted, SpeechPaused, SpeechStopped]
        assert [s.at_ms for s in signals] == pytest.approx([196, 1504, 1504], abs=33)


def test_sessions_are_heard_together_and_apart(model: Cascade) -> None:
    """A batch of sessions at different points and rates gives what each would get alone."""
    calls = [
        (SessionSetup(), quiet(0.3) + sound(1) + quiet(1)),
        (SessionSetup(input_rate=8000), sound(0.5, 8000) + quiet(2, 8000)),
        (_PUSH_TO_TALK, sound(2)),
        (SessionSetup(), b""),
    ]
    callers = [model.open(setup) for setup, _ in calls]
    together: list[list[Signal]] = [[] for _ in calls]
    for at in range(0, 2 * 48_000, 4000):
        batch = [(c, pcm[at : at + 4000]) for c, (_, pcm) in zip(callers, calls, strict=True)]
        for signals, heard in zip(together, model.hear(batch), strict=True):
            signals += heard.signals
    alone = [hear(model, model.open(setup), pcm[: 2 * 48_000], 4000) for setup, pcm in calls]
    assert together == alone
    assert together[0]
    assert together[1]


def test_push_to_talk_keeps_everything_to_the_last_sample(model: Cascade) -> None:
    """Nothing is told; a commit takes all audio since the last one, without overlap."""
    caller = model.open(_PUSH_TO_TALK)
    assert hear(model, caller, sound(1.01)) == []
    first = model.utterance(caller, cut=True)
    hear(model, caller, quiet(0.5))
    second = model.utterance(caller, cut=True)
    assert first is not None
    assert second is not None
    assert len(first.pcm) == pytest.approx(1.01 * 64_000, abs=8)
    assert (first.start_ms, first.stop_ms, first.voiced_ms) == (0, 1010, 1010)
    assert len(second.pcm) == pytest.approx(0.5 * 64_000, abs=8)
    assert model.utterance(caller, cut=True) is None


def test_push_to_talk_is_bounded(model: Cascade) -> None:
    """Past two minutes the oldest audio goes."""
    caller = model.open(_PUSH_TO_TALK)
    hear(model, caller, quiet(125), tick=48_000 * 5)
    turn = model.utterance(caller, cut=True)
    assert turn is not None
    assert (turn.start_ms, turn.stop_ms) == (4992, 125_000)  # and less than a frame not yet judged


def test_listening_keeps_only_the_padding(model: Cascade) -> None:
    """However long nobody speaks, no more than the prefix padding is held."""
    caller = model.open(SessionSetup())
    hear(model, caller, quiet(20), tick=48_000)
    kept = model.utterance(caller, cut=True)
    assert kept is not None
    assert kept.stop_ms - kept.start_ms == 300


def test_clear_forgets_speech_under_way(model: Cascade) -> None:
    """Cleared audio is in no later turn, and its turn never ends."""
    caller = model.open(SessionSetup())
    hear(model, caller, sound(1))
    model.clear(caller)
    assert model.utterance(caller, cut=False) is None
    assert hear(model, caller, quiet(2)) == []


def test_clear_forgets_audio_that_is_being_heard(model: Cascade) -> None:
    """Audio inside `hear` when the client clears does not come back after it."""
    inside, cleared = threading.Event(), threading.Event()

    class SlowVad:
        state_size = 0

        def probabilities(self, frames: Samples, states: Samples) -> tuple[Samples, Samples]:
            inside.set()
            assert cleared.wait(5)
            return np.ones(len(frames), np.float32), states

    model._vad = SlowVad()
    caller = model.open(SessionSetup())
    results: list[Heard] = []
    thread = threading.Thread(target=lambda: results.extend(model.hear([(caller, sound(1))])))
    thread.start()
    assert inside.wait(5)
    model.clear(caller)
    cleared.set()
    thread.join()
    assert results == [Heard()]
    assert model.utterance(caller, cut=True) is None


def test_a_manual_commit_ends_the_turn_under_way(model: Cascade) -> None:
    """Beside turn detection, too, a commit takes what was said; the rest is a new turn."""
    caller = model.open(SessionSetup())
    hear(model, caller, sound(1))
    turn = model.utterance(caller, cut=True)
    assert turn is not None
    assert turn.stop_ms >= 992
    signals = hear(model, caller, sound(1) + quiet(1))
    assert isinstance(signals[0], SpeechStarted)
    assert signals[0].at_ms >= turn.stop_ms


def test_settings_change_in_mid_call(model: Cascade) -> None:
    """Push to talk can begin in mid-turn and keeps its audio; the input rate may change as well."""
    caller = model.open(SessionSetup())
    hear(model, caller, sound(1))
    push_to_talk = SessionSetup(turn_detection=TurnDetection(enabled=False), input_rate=8000)
    model.configure(caller, push_to_talk)
    assert hear(model, caller, sound(1, 8000) + quiet(1, 8000)) == []
    turn = model.utterance(caller, cut=True)
    assert turn is not None
    assert turn.stop_ms - turn.start_ms == pytest.approx(3000, abs=2)


def test_an_idle_caller_is_missed_after_the_answer(model: Cascade) -> None:
    """Idle time counts from the end of playback, not while an answer is being made."""
    setup = SessionSetup(turn_detection=TurnDetection(idle_timeout_ms=5000))
    caller = model.open(setup)
    model.ended(caller, 1000)
    model.begin(caller)
    assert hear(model, caller, quiet(8)) == []
    model.ended(caller, 1000)
    assert hear(model, caller, quiet(8)) == [IdleTimeout(9000, 14016)]


def flat(model: Cascade, caller: Caller, messages: Sequence[Message]) -> list[int]:
    return [t for s in model.prompt(caller, "Be brief.", messages) for t in s.token_ids]


def test_the_next_context_continues_the_resident_one(model: Cascade) -> None:
    """Prompt, sampled tokens and stop are a prefix of the prompt after the next question."""
    caller = model.open(SessionSetup())
    asked = [Message("user", "how far is it", "u1")]
    sampled = (17 + 990, 999, 33, model.spec.stop_token_ids[0])  # the first reads as word 17 does
    resident = flat(model, caller, asked) + list(sampled)
    model.begin(caller)
    text = "".join(model.decode(caller, (token,)).text for token in sampled)
    model.remember(caller, text, sampled)
    talk = [*asked, Message("assistant", text, "a1"), Message("user", "and back", "u2")]
    wanted = flat(model, caller, talk)
    assert wanted[: len(resident)] == resident
    cut_short = text[: text.rindex(" ")]
    shorter = flat(model, caller, [*asked, Message("assistant", cut_short, "a1")])
    assert shorter[: len(resident) - 2] == resident[:-2]


def test_segments_name_their_items(model: Cascade) -> None:
    """Header first, cue last, each message with the item it is."""
    caller = model.open(SessionSetup())
    segments = model.prompt(caller, "", [Message("user", "a", "u1"), Message("tool", "b", "t1")])
    assert [(s.kind, s.item_id) for s in segments] == [
        ("header", ""),
        ("message", "u1"),
        ("message", "t1"),
        ("cue", ""),
    ]


def test_each_answer_is_decoded_anew(model: Cascade) -> None:
    """The first word of an answer has no space before it, later ones do; tokens make speakable text."""
    caller = model.open(SessionSetup())
    for _ in range(2):
        model.begin(caller)
        text = [model.decode(caller, (token,)).text for token in (10, 11, 1)]
        assert text[0].isalpha()
        assert text[1].startswith(" ")
        assert text[2] == ""
    assert len(model.speak("".join(text), "tone", 1.0)) > 24_000 * 2 * 0.3


def test_the_simulated_vocabulary_tells_tokens_apart(model: Cascade) -> None:
    """Every token decodes to its own word, and a word encodes to its own token."""
    caller = model.open(SessionSetup())
    model.begin(caller)
    words = model.decode(caller, tuple(range(10, 1000))).text.split()
    assert len(set(words)) == 990
    tokens = flat(model, caller, [Message("user", " ".join(words))])
    assert tokens[-992:-2] == list(range(10, 1000))
    assert all(a < b for a, b in pairwise(tokens[-992:-2]))
    assert math.isclose(sum(w.endswith((".", ",")) for w in words) / 990, 0.1, abs_tol=0.02)
