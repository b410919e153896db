"""The one place that opens an ONNX model: one thread each, never spinning.

Spinning worker threads beside an inference engine's own are what made a turn take 17 s instead of 0.8 s on two
cores, so parallelism comes from the callers' pool and not from inside onnxruntime.
"""

from pathlib import Path
from typing import Any

from engine.speech.ports import SpeechUnavailable


def open_onnx(path: Path) -> Any:
    """An `onnxruntime.InferenceSession` on one CPU thread; its `run` may be called from many threads at once.

    Raises:
        SpeechUnavailable: onnxruntime is not installed, or the file is missing or not a model.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise SpeechUnavailable(
            f"cannot load {path.name}: onnxruntime is missing; pip install 'metronome-realtime[embedded]'"
        ) from error
    if not path.is_file():
        raise SpeechUnavailable(f"{path} is missing; run: metronome models fetch embedded")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _errors() as error:
        raise SpeechUnavailable(
            f"{path} is not a usable model; run: metronome models fetch embedded"
        ) from error


def _errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises for a file that is no model; its errors have no base class of their own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile")
    return (RuntimeError, *(getattr(state, name) for name in names))
