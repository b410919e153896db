"""What a Live session is set to, from session.start to its end."""

from typing import Any

import msgspec

from protocol.audio_format import PCM_RATE, AudioFormat
from protocol.errors import ProtocolError, invalid_value
from protocol.live.client_events import LiveFormat, LiveSession
from protocol.session_config import SessionDefaults, known_voice


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force; before session.start the deployment's."""

    instructions: str
    voice: str
    format: AudioFormat = AudioFormat.PCM
    rate: int = PCM_RATE
    about: dict[str, Any] = {}  # what the client is shown of them


def initial(defaults: SessionDefaults) -> LiveSettings:
    """Nobody has started the session yet."""
    return LiveSettings(instructions=defaults.instructions, voice=defaults.voice)


def started(session: LiveSession, defaults: SessionDefaults) -> LiveSettings | ProtocolError:
    """What session.start asks for."""
    audio = session.audio
    chosen = _format_of(None if audio is None else audio.format)
    if isinstance(chosen, ProtocolError):
        return chosen
    audio_format, rate = chosen
    asked = None if audio is None or audio.output is None else audio.output.voice
    voice = known_voice(asked, defaults)
    instructions = session.instructions or defaults.instructions
    about: dict[str, Any] = {
        "audio": {"format": {"type": audio_format.value, "rate": rate}, "output": {"voice": voice}},
        "instructions": instructions,
    }
    if session.delegation is not None:
        about["delegation"] = session.delegation
    return LiveSettings(
        instructions=instructions, voice=voice, format=audio_format, rate=rate, about=about
    )


def _format_of(asked: LiveFormat | None) -> tuple[AudioFormat, int] | ProtocolError:
    """The format and its rate: pcm has two, G.711 one."""
    if asked is None:
        return AudioFormat.PCM, PCM_RATE
    chosen = AudioFormat(asked.type)
    rates = (PCM_RATE, 16_000) if chosen is AudioFormat.PCM else (chosen.rate,)
    rate = asked.rate or rates[0]
    if rate in rates:
        return chosen, rate
    allowed = " or ".join(map(str, rates))
    return invalid_value(
        f"Invalid value: {rate}. The rate of {asked.type} is {allowed}.",
        "session.audio.format.rate",
    )
