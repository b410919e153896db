"""Models by id."""

import sys
import timeit
from pathlib import Path

import pytest
from support.embedded import embedded_files
from support.tiny_chatml import write_tiny_chatml

from engine.models.base import SessionSetup
from engine.models.cascade import Cascade
from engine.models.registry import ModelSettings, build_bystander, build_model, llm_location
from engine.models.sim import SimDuplex

_SIM_PARTS = {"vad": "sim", "stt": "sim", "tts": "sim"}


def test_the_simulated_cascade_needs_nothing() -> None:
    """`sim` builds without weights or packages and says that it is simulated."""
    model = build_model(ModelSettings(id="sim", tick_ms=80, public_id="mine"))
    assert (model.spec.id, model.spec.tick_ms, model.spec.quality) == ("mine", 80, "simulated")
    assert not model.spec.decides_turns
    assert llm_location(ModelSettings(id="sim")) is None


def test_the_simulated_duplex_model_gives_a_frame_for_a_frame() -> None:
    """Each tick brings its tokens and asks for its own; what comes out is as long as what went in."""
    settings = ModelSettings(id="sim-duplex", tick_ms=80, prefill_per_tick=3, decode_per_tick=2)
    model = build_model(settings)
    assert isinstance(model, SimDuplex)
    state = model.open(SessionSetup())
    (heard,) = model.hear([(state, bytes(3840))])
    assert heard.chunk is not None
    assert (len(heard.chunk.token_ids), heard.chunk.decode) == (3, 2)
    output = model.decode(state, (5, 6))
    assert output.speaking
    assert len(output.pcm) == 3840
    assert model.spec.decides_turns


def test_who_listens_beside_a_duplex_model() -> None:
    """Both, one or nobody, as `vad` and `stt` say."""
    both = build_bystander(ModelSettings(id="sim-duplex", vad="sim", stt="sim"))
    assert both is not None
    assert (both.detects, both.transcribes) == (True, True)
    deaf = build_bystander(ModelSettings(id="sim-duplex", vad="none", stt="sim"))
    assert deaf is not None
    assert (deaf.detects, deaf.transcribes) == (False, True)
    assert build_bystander(ModelSettings(id="sim-duplex", vad="none", stt="none")) is None


def test_the_simulated_duplex_model_costs_nothing() -> None:
    """Hearing and decoding a frame take a few microseconds at most, even on a busy machine."""
    model = SimDuplex()
    state = model.open(SessionSetup())
    batch = [(state, bytes(3840))]
    per_frame = min(timeit.repeat(lambda: model.decode(state, (5,)), number=2000, repeat=5)) / 2000
    per_tick = min(timeit.repeat(lambda: model.hear(batch), number=2000, repeat=5)) / 2000
    assert per_frame < 2e-6
    assert per_tick < 2e-6


def test_a_folder_is_the_language_model_of_a_cascade(tmp_path: Path) -> None:
    """A local model folder is read, and the engine is sent to the same place."""
    folder = write_tiny_chatml(tmp_path / "model")
    settings = ModelSettings(id=str(folder), **_SIM_PARTS)
    model = build_model(settings)
    assert isinstance(model, Cascade)
    assert model.spec.quality == ""
    assert model.spec.stop_token_ids
    assert model.sampling().temperature > 0
    assert llm_location(settings) == str(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ModelSettings(id="nonsense"), "unknown model 'nonsense': expected embedded, sim"),
        (ModelSettings(id="sim:x", **_SIM_PARTS), "unknown model 'sim:x'"),
        (ModelSettings(llm="sim", vad="webrtc"), "unknown vad 'webrtc': expected embedded:silero"),
        (ModelSettings(llm="sim", vad="sim", stt="whisper"), "unknown stt 'whisper'"),
        (ModelSettings(llm="sim", vad="sim", stt="sim", tts="kokoro"), "unknown tts 'kokoro'"),
    ],
)
def test_an_unknown_id_is_answered_with_the_known_ones(
    settings: ModelSettings, message: str
) -> None:
    """One line names the id and what would have been right."""
    with pytest.raises(ValueError, match=message) as caught:
        build_model(settings) if settings.llm == "sim" else llm_location(settings)
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id whose files cannot be had says so, and why."""
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*_: object, **__: object) -> str:
        raise OSError("offline\nmode")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(ValueError, match=r"^some/model cannot be fetched from the hub: offline$"):
        build_model(ModelSettings(id="some/model", **_SIM_PARTS))


def test_a_missing_hub_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the hub's client a hub id says what to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface-hub"):
        build_model(ModelSettings(id="some/model", **_SIM_PARTS))


@pytest.mark.embedded
@pytest.mark.slow
def test_the_embedded_model_is_labelled_demo() -> None:
    """The whole embedded stack builds from the cache folder, greedy and labelled for what it is."""
    pytest.importorskip("hibari")
    settings = ModelSettings(embedded=embedded_files().root)
    model = build_model(settings)
    assert (model.spec.id, model.spec.quality) == ("embedded", "demo")
    assert (model.spec.tick_ms, model.spec.output_rate) == (160, 24_000)
    assert model.sampling().temperature == 0
    assert llm_location(settings) == str(embedded_files().llm)
