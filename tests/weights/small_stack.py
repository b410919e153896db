"""A voice stack of a few kilobytes, and an index that serves it."""

import hashlib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from weights.gguf_writer import llama_metadata, llama_tensors, write_gguf

from engine.weights.pins import PinnedFile, PinnedStack, PinnedWheel


def pin(member: str, path: str, content: bytes) -> PinnedFile:
    return PinnedFile(member, path, len(content), hashlib.sha256(content).hexdigest())


@dataclass
class Index:
    """Serves wheels made from `contents` and records what was asked of it."""

    contents: dict[str, dict[str, bytes]]  # requirement -> member -> bytes
    asked: list[str] = field(default_factory=list)

    def download(self, requirement: str, folder: Path) -> Path:
        """Stands in for pip."""
        self.asked.append(requirement)
        wheel = folder / f"{requirement.replace('==', '-')}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in self.contents[requirement].items():
                archive.writestr(member, content)
        return wheel


def small_stack(scratch: Path) -> tuple[PinnedStack, Index]:
    """Two speech wheels and a language model that really converts."""
    gguf = scratch / "source.gguf"
    write_gguf(gguf, llama_metadata(), llama_tensors())
    contents = {
        "vad==1": {"vad/data.onnx": b"vad" * 100, "vad/code.py": b"raise SystemExit"},
        "stt==2": {"stt/encoder.ort": b"encoder" * 100, "stt/tokens.bin": b"tokens"},
        "llm==3": {"llm/tiny.gguf": gguf.read_bytes()},
    }
    stack = PinnedStack(
        speech=(
            PinnedWheel(
                "vad==1",
                "a detector",
                "MIT",
                (pin("vad/data.onnx", "vad.onnx", contents["vad==1"]["vad/data.onnx"]),),
            ),
            PinnedWheel(
                "stt==2",
                "a transcriber",
                "MIT",
                (
                    pin(
                        "stt/encoder.ort", "stt/encoder.ort", contents["stt==2"]["stt/encoder.ort"]
                    ),
                    pin("stt/tokens.bin", "stt/tokens.bin", contents["stt==2"]["stt/tokens.bin"]),
                ),
            ),
        ),
        language=PinnedWheel(
            "llm==3",
            "a language model",
            "MIT",
            (pin("llm/tiny.gguf", "smollm2.gguf", contents["llm==3"]["llm/tiny.gguf"]),),
        ),
    )
    return stack, Index(contents)
