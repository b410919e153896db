"""pipecat-ai with turns of its own: the server's turn detection is off, and pipecat's voice activity detection and turn
model decide when to commit, to ask and to interrupt. The conversation is that of pipecat_bot.py.
"""

import common
import pipecat_bot
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregatorParams
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioTranscription,
    SessionProperties,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService


def make_service(base_url: str, key: str) -> OpenAIRealtimeLLMService:
    url = base_url.replace("http", "ws", 1) + "/realtime"
    # region: how to point it here
    # url = "ws://127.0.0.1:8000/v1/realtime"
    heard = AudioInput(transcription=InputAudioTranscription(), turn_detection=False)
    settings = OpenAIRealtimeLLMService.Settings(
        session_properties=SessionProperties(audio=AudioConfiguration(input=heard))
    )
    return OpenAIRealtimeLLMService(api_key=key, base_url=url, settings=settings)
    # endregion


def hears_by_itself() -> LLMUserAggregatorParams:
    """Silero, and the turn model that pipecat brings along; as patient as the speaker of the recording needs."""
    vad = SileroVADAnalyzer(params=VADParams(stop_secs=0.6))
    return LLMUserAggregatorParams(vad_analyzer=vad)


if __name__ == "__main__":
    setup = pipecat_bot.Setup(make_service, hears_by_itself)
    common.run("pipecat-ai (own VAD)", "pipecat-ai", setup.program)
