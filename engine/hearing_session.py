"""A call with a turn-based model that hears for itself: audio enters the context while the caller speaks.

    listening   each second of the turn is appended to the resident context as it is heard
    turn over   the answer appends the end of the turn and its cue, nothing else, and decodes

Transcription, where the deployment has it, runs beside all this for the client's sake; no answer waits for it.
"""

from typing import cast

from engine.answer import Answer
from engine.audio_memory import AudioMemory
from engine.hearing_lane import HearingLane
from engine.inbox import ClearMark, CommitMark
from engine.lane import Lane
from engine.models.base import AudioChunk, Heard, HearingModel, Prompt, SessionSetup
from engine.session import Call
from engine.turn_session import TurnSession


class HearingSession(TurnSession):
    """Feeds the caller's audio ahead of the answer to it."""

    _lane: HearingLane

    def __init__(self, call: Call) -> None:
        # What a context can hold can be fed again.
        self._memory = AudioMemory(call.parts.limits.policy.limit(0, call.parts.limits.max_context))
        self._hearing_model = cast(HearingModel, call.parts.model)
        super().__init__(call)
        call.spawn(call.session_id, self._open_lane())

    def _new_lane(self, lane_id: str) -> Lane:
        limits = self._parts.limits_of(self.setup)
        bridge = self._hearing_model.bridge
        return HearingLane(lane_id, self._parts.stepper, limits, self._memory, bridge)

    async def _open_lane(self) -> None:
        """Put the header into the context ahead of the first word."""
        parts = self._parts
        asked = Prompt(self.setup.instructions, (), self.setup.tools)
        segments = await parts.pool.run(self._hearing_model.turn_prompt, self.state, asked)
        header = tuple(t for s in segments if s.kind == "header" for t in s.token_ids)
        if not self.closed:
            self._lane.open(header, self._soon())

    def _soon(self) -> float:
        """When a chunk of listening is due: it only has to be done before the next."""
        return self._parts.clock.now() + self._parts.settings.first_output_s

    def _apply(self, setup: SessionSetup) -> None:
        old = self.setup
        renewed = (setup.instructions, setup.tools) != (old.instructions, old.tools)
        super()._apply(setup)
        if renewed:
            self._spawn(self.id, self._open_lane())

    def _act(self, heard: Heard) -> None:
        if heard.chunk is not None and not self.closed:
            opens = not self._memory.turn
            self._lane.listen(self._memory.hear(heard.chunk), opens=opens, deadline=self._soon())
        super()._act(heard)

    def _saw(self, item_id: str, content: AudioChunk) -> None:
        """In the middle of a turn it is part of it, otherwise a message: fed at once, like what is heard."""
        if self.closed:
            return
        within = bool(self._memory.turn)
        marked = self._memory.show(item_id, content, self._hearing_model.turn_around)
        if within:
            self._lane.listen(marked, opens=False, deadline=self._soon())
        else:
            self._lane.show(marked, self._soon())

    async def _answer(self, answer: Answer, lane: Lane) -> None:
        await self._showing.done()
        await super()._answer(answer, lane)

    def _cut(self, item_id: str) -> None:
        self._memory.hear(self._hearing_model.finish(self.state))  # fed by the answer, if any comes
        self._memory.commit(item_id)
        known = self._transcripts.get(item_id)
        if known is not None and not known.done():
            known.set_result("")  # an answer to it need not wait for words
        super()._cut(item_id)

    def _met(self, mark: CommitMark | ClearMark) -> None:
        if isinstance(mark, ClearMark):
            self._memory.clear()
        super()._met(mark)
