"""A call with a frame-locked model that begins with a prompt: who it is and how it sounds, before the first frame.

    opened ──▶ PROMPTING ──the prompt is in the context──▶ in progress, tick by tick
                ▲     │
                └─────┘ settings changed before the first frame: prompted anew, in a fresh context

The prompt is begun when the call is opened, because clients send their settings first and their audio a little later;
usually it is over when somebody speaks. Frames that come meanwhile wait in the inbox, and count as late if they must.
Once a frame has been heard, new settings are for the next call.
"""

from typing import cast

from engine.frame_session import FrameSession
from engine.lane import FrameLane
from engine.models.base import AudioChunk, Heard, PromptedModel, SessionSetup
from engine.session import Call
from engine.work import Frame, TokenChunk


class PromptedFrameSession(FrameSession):
    """Adds the prompt to a `FrameSession`."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._prompt: AudioChunk | None = None  # the newest that was sent
        self._prompts = 0  # sent, ever
        self._prompting = False
        self._begun = False  # a frame has been heard
        self._begin()

    def _begin(self) -> None:
        """Prompt the model as the settings are now, unless it has been already."""
        prompt = cast(PromptedModel, self._parts.model).opening(self.state)
        if prompt == self._prompt:
            return
        if self._prompt is not None:
            self._lane.close()
            self._lane = self._another_lane()
        self._prompt, self._prompting = prompt, prompt is not None
        if prompt is not None:
            self._prompts += 1
            due = self._parts.clock.now() + self._parts.settings.first_output_s
            self._lane.feed(prompt, due, self._prompted)

    def _another_lane(self) -> FrameLane:
        name = f"{self.id}/{self._prompts}"
        return FrameLane(name, self._parts.stepper, self._parts.limits)

    def _prompted(self, chunk: TokenChunk, now: float) -> None:
        if chunk.error is not None:
            self.fail("prompt_refused", chunk.error)
        elif chunk.finished:
            self._prompting = False
            self._ear.ready(self)

    def next_frame(self) -> Frame | None:
        if self._new_setup is not None and self._hearing is None and not self.closed:
            self._apply(self._new_setup)
            self._new_setup = None
        return None if self._prompting else super().next_frame()

    def _apply(self, setup: SessionSetup) -> None:
        super()._apply(setup)
        if not self._begun:
            self._begin()

    def heard(self, frame: Frame, heard: Heard, now: float) -> None:
        self._begun = True
        super().heard(frame, heard, now)
