"""LiveKit's `GPTLiveModel`: the Live protocol, in which LiveKit finds turns in the audio that flows all the time.

The conversation is that of livekit_agent.py without the tool: in this protocol tools belong to a second model.
"""

from typing import Any

import common
from livekit.agents import Agent, AgentSession
from livekit.agents.utils import http_context
from livekit.plugins import openai
from livekit_agent import Talk


def make_session(base_url: str, key: str) -> AgentSession[None]:
    # region: how to point it here
    # base_url = "http://127.0.0.1:8000/v1"
    model = openai.realtime.GPTLiveModel(base_url=base_url, api_key=key)
    return AgentSession(llm=model, aec_warmup_duration=None)
    # endregion


async def barge_in(talk: Talk, speech: bytes) -> dict[str, Any]:
    """The protocol knows no interruptions: the answer falls silent while the caller speaks, and another one follows."""
    handle = talk.ask(common.LONG)
    while not talk.speaker.sound.pcm:
        talk.changed.clear()
        await talk.changed.wait()
    await talk.say(speech)
    was_cut_off = handle.done()
    answer = await talk.answer(await talk.spontaneous.get())
    return {**answer, "interrupted": was_cut_off}


async def program(base_url: str, key: str, speech: bytes, report: dict[str, Any]) -> None:
    async with http_context.open(), make_session(base_url, key) as session:
        talk = Talk(session)
        await session.start(Agent(instructions="Be brief."), record=False)
        if not common.ONLY_SPOKEN:
            report["typed"] = await talk.answer(talk.ask(common.TYPED))

        await talk.say(speech)
        spoken = await talk.answer(await talk.spontaneous.get())
        report["spoken"] = {**spoken, "heard": talk.heard}
        if common.ONLY_SPOKEN:
            return

        report["barge_in"] = await barge_in(talk, speech)
        report["history"] = talk.told()
    async with http_context.open(), make_session(base_url, key) as session:
        talk = Talk(session)
        await session.start(Agent(instructions="Be brief."), record=False)
        report["second"] = await talk.answer(talk.ask(common.TYPED))


if __name__ == "__main__":
    common.run("livekit-plugins-openai (Live)", "livekit-plugins-openai", program)
