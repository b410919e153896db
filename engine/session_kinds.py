"""Which kind of session holds a model's calls."""

from engine.frame_session import FrameSession
from engine.hearing_session import HearingSession
from engine.models.base import ModelSpec
from engine.prompted_frame_session import PromptedFrameSession
from engine.transcribing_session import TranscribingSession
from engine.turn_session import TurnSession
from engine.voiced_frame_session import VoicedFrameSession


def session_of(spec: ModelSpec) -> type[FrameSession] | type[TurnSession]:
    """The class of a model's sessions."""
    if spec.decides_turns:
        if spec.prompted:
            return PromptedFrameSession
        if spec.transcribes:
            return TranscribingSession
        return VoicedFrameSession if spec.writes else FrameSession
    return HearingSession if spec.hears_audio else TurnSession
