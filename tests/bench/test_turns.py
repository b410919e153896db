"""A turn is put together from the server's events, and judged."""

import base64
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.audio import Utterance
from bench.turns import Turn
from bench.verdict import faults

SPOKEN = Utterance("u", b"\0\0" * 24_000, "go forward ten meters", human=True)
TONE = (8000 * np.sin(np.arange(24_000) / 20)).astype("<i2").tobytes()


def event(kind: str, **fields: Any) -> Any:
    """A server event, as far as a turn looks at it."""
    return SimpleNamespace(type=kind, **fields)


def heard(item: str, text: str) -> list[Any]:
    """The events of one understood stretch of speech."""
    return [
        event("input_audio_buffer.speech_started"),
        event("input_audio_buffer.speech_stopped"),
        event("input_audio_buffer.committed", item_id=item),
        event(
            "conversation.item.input_audio_transcription.completed", item_id=item, transcript=text
        ),
    ]


def answered(response: str, text: str, status: str = "completed", pcm: bytes = TONE) -> list[Any]:
    """The events of one answer."""
    delta = base64.b64encode(pcm).decode()
    return [
        event("response.created", response=SimpleNamespace(id=response)),
        event("response.output_audio_transcript.delta", response_id=response, delta=text),
        event("response.output_audio.delta", response_id=response, delta=delta),
        event("response.done", response=SimpleNamespace(id=response, status=status)),
    ]


def turn_of(*events: Any) -> Turn:
    """A turn that was said whole and met `events`, one every 0.1 s from 10 s on."""
    turn = Turn(SPOKEN, spoken_at=9.5, sent_at=9.6)
    for index, one in enumerate(events):
        turn.take(one, 10.0 + index / 10)
    return turn


def test_an_understood_and_answered_turn_is_complete_and_faultless() -> None:
    """Instants, texts and audio of the plain case."""
    turn = turn_of(*heard("i1", "Go forward 10 meters."), *answered("r1", "I will."))
    assert turn.is_complete
    assert turn.decision_to_audio_s == pytest.approx(0.5)
    assert turn.speech_to_audio_s == pytest.approx(1.1)
    assert turn.answer_s == pytest.approx(1.0)
    assert faults(turn, "i will") == []


def test_a_pause_in_mid_sentence_makes_one_turn_of_two() -> None:
    """Transcripts are joined; the interrupted answer does not count, the last one does."""
    turn = turn_of(
        *heard("i1", "Go forward"),
        *answered("r1", "Where", "cancelled"),
        *heard("i2", "ten meters."),
        *answered("r2", "Done."),
    )
    assert turn.heard == "Go forward ten meters."
    assert turn.answer == "Done."
    assert turn.decided_at == pytest.approx(10.9)
    assert turn.is_complete
    assert faults(turn, "done") == []


def test_an_interrupted_answer_does_not_end_the_turn() -> None:
    """The caller who interrupted is owed another answer."""
    turn = turn_of(*heard("i1", "Go forward"), *answered("r1", "Where", "cancelled"))
    assert not turn.is_complete


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 7])
def test_a_turn_is_not_complete_before_the_last_event(cut: int) -> None:
    """Neither a missing transcript nor an unfinished answer passes for a complete turn."""
    events = [*heard("i1", "Go forward ten meters"), *answered("r1", "Yes.")]
    assert not turn_of(*events[:cut]).is_complete
    assert turn_of(*events).is_complete


@pytest.mark.parametrize(
    ("turn", "again", "fault"),
    [
        (turn_of(*heard("i", "go forward tin meters"), *answered("r", "Yes.")), "yes", "misheard"),
        (turn_of(*heard("i", SPOKEN.words)), "", "no spoken answer"),
        (
            turn_of(*heard("i", SPOKEN.words), *answered("r", "Yes.", "failed")),
            "yes",
            "no spoken answer",
        ),
        (
            turn_of(*heard("i", SPOKEN.words), *answered("r", "Yes.", pcm=bytes(48_000))),
            "yes",
            "not audible",
        ),
        (
            turn_of(*heard("i", SPOKEN.words), *answered("r", "Yes, I will.")),
            "yes sigh will not",
            "not intelligible",
        ),
        (
            turn_of(event("error", error=SimpleNamespace(message="no"))),
            "",
            "error event: no",
        ),
    ],
)
def test_what_is_wrong_with_a_turn_is_named(turn: Turn, again: str, fault: str) -> None:
    """Each way in which the demo can fail has its own line."""
    assert any(fault in line for line in faults(turn, again))


def test_an_answer_five_seconds_after_the_turn_is_late() -> None:
    """First audio is owed within five seconds of the end of the turn."""
    turn = turn_of(*heard("i", SPOKEN.words), *answered("r", "Yes."))
    turn.decided_at = 10.6 - 5.01
    assert any(line.startswith("late") for line in faults(turn, "yes"))
    turn.decided_at = 10.6 - 4.99
    assert faults(turn, "yes") == []


def test_a_voice_made_question_may_be_misheard() -> None:
    """Only the transcripts of people are judged."""
    turn = turn_of(*heard("i", "something else"), *answered("r", "Yes."))
    turn.said = Utterance("q", SPOKEN.pcm, SPOKEN.words, human=False)
    assert faults(turn, "yes") == []
