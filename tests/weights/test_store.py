"""Checking a fetched folder, and where it lies."""

from pathlib import Path

import pytest
from weights.small_stack import small_stack

from engine.weights import (
    EmbeddedFiles,
    WeightsCorrupt,
    WeightsMissing,
    embedded_dir,
    fetch_embedded,
    verify_embedded,
)
from engine.weights.paths import cache_root
from engine.weights.pins import EMBEDDED, PinnedStack


@pytest.fixture
def fetched(tmp_path: Path) -> tuple[PinnedStack, Path]:
    """A small stack, fetched."""
    stack, index = small_stack(tmp_path)
    fetch_embedded(tmp_path / "embedded", lambda line: None, index.download, stack=stack)
    return stack, tmp_path / "embedded"


def test_a_whole_folder_verifies(fetched: tuple[PinnedStack, Path]) -> None:
    """By hashes and by sizes alone."""
    stack, folder = fetched
    verify_embedded(folder, stack=stack)
    verify_embedded(folder, hashes=False, stack=stack)


@pytest.mark.parametrize("name", ["vad.onnx", "stt/encoder.ort", "llm/config.json", "llm"])
def test_a_missing_file_is_named_with_what_to_run(
    fetched: tuple[PinnedStack, Path], name: str
) -> None:
    """Pinned files, converted files, and the whole converted folder."""
    stack, folder = fetched
    (folder / name).rename(folder / "elsewhere")
    with pytest.raises(WeightsMissing, match=f"{name}.* is missing: run `metronome models fetch`"):
        verify_embedded(folder, stack=stack)


@pytest.mark.parametrize("name", ["vad.onnx", "llm/tokenizer.json"])
def test_a_file_cut_short_is_corrupt_even_without_hashing(
    fetched: tuple[PinnedStack, Path], name: str
) -> None:
    """Sizes alone find it."""
    stack, folder = fetched
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsCorrupt, match=rf"{name} has \d+ bytes instead of \d+: run"):
        verify_embedded(folder, hashes=False, stack=stack)


@pytest.mark.parametrize("name", ["vad.onnx", "llm/model.safetensors"])
def test_a_changed_byte_is_corrupt(fetched: tuple[PinnedStack, Path], name: str) -> None:
    """Hashes find what sizes do not, in pinned and in converted files."""
    stack, folder = fetched
    path = folder / name
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(WeightsCorrupt, match=f"{name} does not match its SHA-256: run"):
        verify_embedded(folder, stack=stack)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"converter": 1, "files": {}}'])
def test_an_unreadable_manifest_is_corrupt(fetched: tuple[PinnedStack, Path], text: str) -> None:
    """Whatever is in the file, the answer is one line."""
    stack, folder = fetched
    (folder / "llm" / "manifest.json").write_text(text)
    with pytest.raises(WeightsCorrupt, match=r"manifest\.json is unreadable: run"):
        verify_embedded(folder, stack=stack)


def test_a_folder_of_another_converter_is_made_anew(fetched: tuple[PinnedStack, Path]) -> None:
    """A newer version of this project may convert differently."""
    stack, folder = fetched
    path = folder / "llm" / "manifest.json"
    path.write_text(path.read_text().replace('"converter": 1', '"converter": 0'))
    with pytest.raises(WeightsCorrupt, match="converted by another version"):
        verify_embedded(folder, stack=stack)


def test_a_folder_in_place_of_a_file_is_corrupt(fetched: tuple[PinnedStack, Path]) -> None:
    """What cannot be read as a file is reported, not raised as it is."""
    stack, folder = fetched
    (folder / "vad.onnx").unlink()
    (folder / "vad.onnx").mkdir()
    with pytest.raises(WeightsCorrupt, match=r"vad\.onnx"):
        verify_embedded(folder, stack=stack)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "/home/me/.cache/metronome"),
        ({"XDG_CACHE_HOME": "/big"}, "/big/metronome"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/metronome"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/metronome"),
    ],
)
def test_the_cache_folder_follows_the_xdg_specification(
    environ: dict[str, str], expected: str
) -> None:
    """An absolute XDG_CACHE_HOME counts, an empty or relative one does not."""
    assert cache_root(environ, Path("/home/me")) == Path(expected)


def test_an_argument_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`embedded_dir` lies below the cache it is given, else below the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/big")
    assert embedded_dir(Path("/here")) == Path("/here/embedded")
    assert embedded_dir() == Path("/big/metronome/embedded")


def test_the_pins_and_the_names_of_the_parts_agree() -> None:
    """Every pinned file is reachable under a name of EmbeddedFiles."""
    files = EmbeddedFiles(Path("/e"))
    pinned = {Path("/e") / pin.path for wheel in EMBEDDED.speech for pin in wheel.files}
    assert pinned == {
        files.vad,
        files.transcriber / "encoder_model.ort",
        files.transcriber / "decoder_model_merged.ort",
        files.transcriber / "tokenizer.bin",
    }
    assert [Path("/e") / pin.path for pin in EMBEDDED.language.files] == [files.gguf]


@pytest.mark.embedded
@pytest.mark.slow
def test_the_real_weights_are_the_ones_compared_with_a_reference_conversion() -> None:
    """All 272 tensors were bit-equal to torch's own bfloat16 rounding of them on 2026-11-29."""
    try:
        verify_embedded(embedded_dir())
    except WeightsMissing as missing:
        pytest.skip(str(missing))
    manifest = (EmbeddedFiles(embedded_dir()).llm / "manifest.json").read_text()
    assert "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b" in manifest
