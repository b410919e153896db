"""What surrounds the model: frames in, words and speech out, and when a response is open."""

from pathlib import Path

import numpy as np
import pytest

from engine.backend import EngineUnavailable
from engine.models.base import SessionSetup, TickOutput
from engine.models.moshi import (
    FRAME_BYTES,
    MoshiCaller,
    MoshiModel,
    MoshiPrompts,
    MoshiVoice,
    read_encoder,
    read_spelling,
    tiny_encoder,
    tiny_spelling,
)

SPELLING = (b"", b"", b"", b"", b" Hel", b"lo", b"\xe2", b"\x82", b"\xac", b" ")
PAD = 3
SILENCE = bytes(FRAME_BYTES)


def level(dbfs: float) -> bytes:
    """A frame of that RMS."""
    amplitude = 32768 * 10 ** (dbfs / 20)
    signs = np.where(np.arange(FRAME_BYTES // 2) % 2, 1, -1)
    return np.rint(signs * amplitude).astype("<i2").tobytes()


LOUD = level(-20)


@pytest.fixture
def model() -> MoshiModel:
    return MoshiModel("m", SPELLING, MoshiVoice(silence_dbfs=-50.0, close_after_ms=240))


@pytest.fixture
def caller(model: MoshiModel) -> MoshiCaller:
    return model.open(SessionSetup())


def say(model: MoshiModel, caller: MoshiCaller, *frames: tuple[int, bytes]) -> list[TickOutput]:
    return [model.decode(caller, (token,), pcm) for token, pcm in frames]


class TestHearing:
    def test_a_tick_is_a_frame(self, model: MoshiModel, caller: MoshiCaller) -> None:
        """80 ms of 24 kHz audio go to the backend as they came."""
        (heard,) = model.hear([(caller, LOUD)])
        assert heard.chunk is not None
        assert (heard.chunk.pcm, heard.chunk.token_ids, heard.chunk.decode) == (LOUD, (), 1)

    def test_a_short_piece_waits_for_the_next(self, model: MoshiModel, caller: MoshiCaller) -> None:
        """A commit's rest is neither padded nor lost."""
        (first,) = model.hear([(caller, LOUD[:1000])])
        (second,) = model.hear([(caller, LOUD)])
        assert first.chunk is None
        assert second.chunk is not None
        assert second.chunk.pcm == (LOUD[:1000] + LOUD)[:FRAME_BYTES]
        assert caller.waiting == (LOUD[:1000] + LOUD)[FRAME_BYTES:]

    def test_telephone_audio_is_brought_to_24_khz(self, model: MoshiModel) -> None:
        """A tick of 8 kHz is a frame too, from the first one on."""
        caller = model.open(SessionSetup(input_rate=8000))
        frames = [model.hear([(caller, LOUD[: FRAME_BYTES // 3])])[0].chunk for _ in range(3)]
        assert [len(chunk.pcm) for chunk in frames if chunk] == [FRAME_BYTES] * 3

    def test_the_rate_may_change(self, model: MoshiModel, caller: MoshiCaller) -> None:
        """From the next frame on, audio is taken at the new rate; other settings change nothing."""
        model.configure(caller, SessionSetup(instructions="be brief"))
        assert model.hear([(caller, LOUD)])[0].chunk is not None
        model.configure(caller, SessionSetup(input_rate=8000))
        assert model.hear([(caller, LOUD[: FRAME_BYTES // 3])])[0].chunk is not None


class TestSpeaking:
    def test_silence_is_not_spoken(self, model: MoshiModel, caller: MoshiCaller) -> None:
        """Before the first sound nothing is said, nor is faint noise."""
        outputs = say(model, caller, (PAD, SILENCE), (PAD, level(-60)))
        assert outputs == [TickOutput(speaking=False)] * 2

    def test_nothing_yet_is_silence(self, model: MoshiModel, caller: MoshiCaller) -> None:
        """The backend's first frame brings neither a token nor sound."""
        assert not model.decode(caller, (), b"").speaking

    def test_sound_opens_and_long_silence_closes(
        self, model: MoshiModel, caller: MoshiCaller
    ) -> None:
        """Three silent frames end it; the two before them are sent, as pauses are."""
        frames = [(PAD, LOUD), (PAD, SILENCE), (PAD, SILENCE), (PAD, SILENCE), (PAD, SILENCE)]
        outputs = say(model, caller, *frames)
        assert [output.speaking for output in outputs] == [True, True, True, False, False]
        assert [output.pcm for output in outputs[:3]] == [LOUD, SILENCE, SILENCE]

    def test_a_pause_does_not_add_up(self, model: MoshiModel, caller: MoshiCaller) -> None:
        """Sound between two short pauses keeps the response open."""
        pause = [(PAD, SILENCE)] * 2
        outputs = say(model, caller, (PAD, LOUD), *pause, (PAD, LOUD), *pause)
        assert all(output.speaking for output in outputs)

    def test_a_word_opens_too(self, model: MoshiModel, caller: MoshiCaller) -> None:
        """Its token comes a little before its sound."""
        (output,) = say(model, caller, (4, SILENCE))
        assert (output.speaking, output.text) == (True, "Hel")

    def test_words_are_spelled_as_pieces(self, model: MoshiModel, caller: MoshiCaller) -> None:
        """Padding spells nothing; a response does not begin with a space; bytes wait for their character."""
        outputs = say(model, caller, *((token, LOUD) for token in (4, PAD, 5, 6, 7, 8, 4, 99)))
        assert [output.text for output in outputs] == ["Hel", "", "lo", "", "", "€", " Hel", ""]

    def test_each_response_begins_without_a_space(
        self, model: MoshiModel, caller: MoshiCaller
    ) -> None:
        """The next one after a silence as well."""
        outputs = say(model, caller, (4, LOUD), *[(PAD, SILENCE)] * 3, (4, LOUD))
        assert [output.text for output in outputs] == ["Hel", "", "", "", "Hel"]


class TestSpec:
    def test_the_beat_is_mimis(self, model: MoshiModel) -> None:
        """80 ms at 24 kHz, in and out, one block a session, and the model decides."""
        spec = model.spec
        assert (spec.tick_ms, spec.input_rate, spec.output_rate) == (80, 24_000, 24_000)
        assert (spec.blocks_per_session, spec.decides_turns, spec.hears_inline) == (1, True, True)

    def test_the_tiny_model_has_words(self) -> None:
        """For every text token but the four that are none."""
        assert tiny_spelling()[:5] == (b"", b"", b"", b"", b" w4")


class TestPrompts:
    def opening(self, **setup: str) -> tuple[tuple[int, ...], list[str | None]] | None:
        """The role's tokens and the voice of a call that begins with this setup."""
        model = MoshiModel(
            "m", SPELLING, prompts=MoshiPrompts(lambda text: list(map(ord, text)), ("anna",))
        )
        chunk = model.opening(model.open(SessionSetup(**setup)))  # type: ignore[arg-type]
        if chunk is None:
            return None
        assert chunk.pcm == b""
        return chunk.token_ids, [feature.key for feature in chunk.features]

    def test_a_role_stands_between_tags(self) -> None:
        """As PersonaPlex was trained; tags that are there are not put twice."""
        tagged = tuple(map(ord, "<system> Be kind. <system>"))
        assert self.opening(instructions=" Be kind.\n") == (tagged, [])
        assert self.opening(instructions="<system> Be kind. <system>") == (tagged, [])

    def test_a_voice_is_named(self) -> None:
        """With or without a role; one that is not there is none."""
        assert self.opening(voice="anna") == ((), ["anna"])
        assert self.opening(voice="alloy") is None

    def test_settings_are_taken_as_they_are_now(self) -> None:
        """A session is configured between its opening and its first frame."""
        model = MoshiModel("m", SPELLING, prompts=MoshiPrompts(tiny_encoder))
        caller = model.open(SessionSetup(instructions="Be kind."))
        first = model.opening(caller)
        model.configure(caller, SessionSetup(instructions="Be brief."))
        assert first is not None
        assert model.opening(caller) != first

    def test_a_model_without_prompts_has_none(self, model: MoshiModel) -> None:
        """Moshi itself was not trained with them."""
        assert not model.spec.prompted
        assert (
            model.opening(model.open(SessionSetup(instructions="Be kind.", voice="anna"))) is None
        )

    def test_the_tiny_model_has_tokens_for_any_word(self) -> None:
        """Always the same ones, and none that is no word."""
        tokens = tiny_encoder("be kind, be kind")
        assert tokens[:2] != tokens[1:3]
        assert tokens[0] == tokens[2]
        assert min(tokens) >= 4
        assert max(tokens) < 100


def test_a_tokenizer_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A SentencePiece model with byte fallback spells any text, through `decode`, byte for byte."""
    import sentencepiece

    prefix = tmp_path / "words"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello there, how are you today"] * 20),
        model_prefix=str(prefix),
        vocab_size=290,
        byte_fallback=True,
        pad_id=3,
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = prefix.with_suffix(".model")
    model = MoshiModel("m", read_spelling(path))
    caller = model.open(SessionSetup())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokens = pieces.encode("hello Ünë 木")
    text = "".join(model.decode(caller, (token,), LOUD).text for token in tokens)
    assert text == "hello Ünë 木"
    assert list(read_encoder(path)("hello Ünë 木")) == tokens


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    """One line that says which file."""
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"not a model")
    with pytest.raises(EngineUnavailable, match=r"tokenizer\.model is no SentencePiece model"):
        read_spelling(path)
