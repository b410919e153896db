"""What the engine is told once, and the parts that its sessions share."""

import asyncio
from dataclasses import dataclass, replace

from engine.bystander import Bystander
from engine.clock import Clock
from engine.context import ContextLimits
from engine.models.base import InteractionModel, SessionSetup
from engine.observer import Observer
from engine.pool import Pool
from engine.stepping import Stepper


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds and budgets."""

    inbox_s: float = 330.0  # undigested caller audio per session: one legal 15 MiB append of 24 kHz pcm16 is 328 s
    skip_late_ticks: bool = True  # of frame-locked models in a full house, see staleness
    lead_s: float = 4.0  # decoding pauses while playback is this far ahead
    first_output_s: float = (
        1.5  # from a decided turn to its first output; ticks after that are missed
    )
    max_response_tokens: int = 256
    out_of_band: int = (
        2  # answers beside their conversations at a time; each holds as much KV as a call may
    )
    prefill_budget: int = 512  # new tokens per step, see planner
    pool_threads: int = 2  # transcription and voice
    stall_limit_s: float = (
        5.0  # a step or a hearing that takes longer ends the calls that wait for it
    )
    # One that takes longer than this: the engine is dead. As patient as the warm-up, whose steps may compile kernels.
    hang_limit_s: float = 120.0
    slice_ms: int = 200  # length of one audio delta
    nudge_s: float = 5.0  # a response asked of a model that speaks by itself is over if it says nothing for so long


@dataclass(frozen=True, slots=True)
class Parts:
    """What every session of one engine shares."""

    model: InteractionModel
    stepper: Stepper
    pool: Pool  # transcription, prompts, voice
    clock: Clock
    observer: Observer
    settings: EngineSettings
    limits: ContextLimits  # of the deployment
    beside: asyncio.Semaphore  # what an answer outside its conversation takes of the KV pool
    bystander: Bystander | None = None  # listens beside a frame-locked model

    def limits_of(self, setup: SessionSetup) -> ContextLimits:
        """What this session may hold: the client may ask for less, or for no truncation at all."""
        if setup.policy is None:
            return self.limits
        return replace(self.limits, policy=setup.policy.within(self.limits.policy))
