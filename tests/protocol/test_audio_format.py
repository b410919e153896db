"""The audio formats, against the tables of ITU-T G.711."""

import numpy as np
import pytest

from protocol.audio_format import AudioFormat, pcm_ms

ALL_CODES = bytes(range(256))


@pytest.mark.parametrize(
    ("name", "code", "sample"),
    [
        # Ends and middle of each table (ITU-T G.711, tables 1 and 2, scaled to 16 bits).
        (AudioFormat.MU_LAW, 0x00, -32124),
        (AudioFormat.MU_LAW, 0x80, 32124),
        (AudioFormat.MU_LAW, 0xFF, 0),
        (AudioFormat.MU_LAW, 0xFE, 8),
        (AudioFormat.MU_LAW, 0x8F, 16764),
        (AudioFormat.A_LAW, 0x2A, -32256),
        (AudioFormat.A_LAW, 0xAA, 32256),
        (AudioFormat.A_LAW, 0xD5, 8),
        (AudioFormat.A_LAW, 0x55, -8),
        (AudioFormat.A_LAW, 0x80, 5504),
    ],
)
def test_known_codes(name: AudioFormat, code: int, sample: int) -> None:
    """A code means the sample the standard gives it."""
    assert np.frombuffer(name.to_pcm(bytes([code])), "<i2")[0] == sample


@pytest.mark.parametrize("name", [AudioFormat.MU_LAW, AudioFormat.A_LAW])
def test_every_code_survives(name: AudioFormat) -> None:
    """Decoding and encoding gives every code back, save mu-law's two zeros, which become one."""
    again = name.from_pcm(name.to_pcm(ALL_CODES))
    changed = [code for code in ALL_CODES if again[code] != code]
    assert changed == ([0x7F] if name is AudioFormat.MU_LAW else [])


@pytest.mark.parametrize("name", [AudioFormat.MU_LAW, AudioFormat.A_LAW])
def test_encoding_picks_a_near_code(name: AudioFormat) -> None:
    """Every sample is coded within the step of its segment: at most 1/32 of it off, or 8 near zero."""
    samples = np.arange(-32768, 32768, dtype=np.int32)
    coded = name.from_pcm(samples.astype("<i2").tobytes())
    error = np.abs(np.frombuffer(name.to_pcm(coded), "<i2").astype(np.int32) - samples)
    assert np.all(error <= np.maximum(np.abs(samples) // 31 + 4, 8))


def test_pcm_passes_through() -> None:
    """pcm16 is not touched."""
    audio = b"\1\2\3\4"
    assert AudioFormat.PCM.to_pcm(audio) is audio
    assert AudioFormat.PCM.from_pcm(audio) is audio


def test_facts() -> None:
    """Rates, sample sizes and what the API calls them."""
    assert [(f.rate, f.sample_bytes) for f in AudioFormat] == [(24_000, 2), (8000, 1), (8000, 1)]
    assert AudioFormat.PCM.wire == {"type": "audio/pcm", "rate": 24_000}
    assert AudioFormat.A_LAW.wire == {"type": "audio/pcma"}
    assert pcm_ms(48_000, 24_000) == 1000
