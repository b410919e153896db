"""livekit-plugins-openai with turns of its own: the server's turn detection is off, and LiveKit's voice activity
detection decides when to commit, to ask and to interrupt. The conversation is that of livekit_agent.py.
"""

import functools

import common
import livekit_agent
from livekit.agents import AgentSession, TurnHandlingOptions, inference
from livekit.plugins import openai


def make_session(base_url: str, key: str) -> AgentSession[None]:
    # region: how to point it here
    # base_url = "http://127.0.0.1:8000/v1"
    model = openai.realtime.RealtimeModel(base_url=base_url, api_key=key, turn_detection=None)
    turns = TurnHandlingOptions(turn_detection="vad")
    return AgentSession(
        llm=model, vad=inference.VAD(), turn_handling=turns, aec_warmup_duration=None
    )
    # endregion


if __name__ == "__main__":
    program = functools.partial(livekit_agent.program, make_session)
    common.run("livekit-plugins-openai (own VAD)", "livekit-plugins-openai", program)
