"""The voices of a deployment: files in a folder, each named after its voice. Imports neither torch nor moshi.

NATF0.pt     as NVIDIA prepares them for PersonaPlex: the model's own inputs while it heard itself in that voice
anna.wav     a recording of the voice alone, mono 16 bit at any rate, a few seconds; read when the engine starts
"""

from pathlib import Path

from engine.backend import EngineUnavailable

_KINDS = (".pt", ".wav")


def voice_files(folder: str) -> dict[str, Path]:
    """By name, in order of the names; empty for an empty `folder`.

    Raises:
        EngineUnavailable: there is no such folder, it holds no voice, or two files have the same name.
    """
    if not folder:
        return {}
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise EngineUnavailable(f"engine.moshi.voices: no such folder: {folder}")
    found: dict[str, Path] = {}
    for path in sorted(place.iterdir()):
        if path.suffix not in _KINDS:
            continue
        if path.stem in found:
            raise EngineUnavailable(f"engine.moshi.voices: {folder} has two files for {path.stem}")
        found[path.stem] = path
    if not found:
        raise EngineUnavailable(f"engine.moshi.voices: {folder} holds no .pt or .wav file")
    return found
