"""Full-duplex Moshi behind the engine's port: a slot per session, one frame of sound in and one out per append.

There is no growing context. A slot's memory is taken at the start and is a ring: the model attends to the newest
`context_frames` frames (240 s for the released ones) and forgets what is older. In the terms of the port:

    token      one frame, 80 ms
    block      one slot
    rewind     impossible: an append with `keep_tokens` is refused
    drop       needless, and never exact
    prompt     where the deployment has prompts, a session's first append may have no sound: its tokens are the role,
               its feature names the voice. It is finished several steps later, a stretch of it with each
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from engine.backend import EngineDead
from engine.moshi_adapter.lockstep import Lockstep, RowInput, RowOutput
from engine.moshi_adapter.prompting import Prompting
from engine.moshi_adapter.settings import MoshiSettings
from engine.moshi_adapter.slots import Seat, SlotTable
from engine.moshi_adapter.weights import load_models
from engine.work import Append, KvSnapshot, StepResult, TickBatch, TokenChunk

_ENDLESS = 2**31 - 1  # frames: five years


class MoshiBackend:
    """Implements `engine.backend.Backend`. Every append with sound is finished by the step that takes it."""

    def __init__(
        self, settings: MoshiSettings, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        """Load the model and take the memory of all slots. `timer` measures how long steps take.

        Raises:
            EngineUnavailable: there is no such checkpoint, or a file of it is missing.
        """
        self._lockstep = Lockstep(load_models(settings), settings)
        self._prompting = Prompting(self._lockstep, settings) if settings.prompted else None
        self._table = SlotTable(settings.batch_sizes)
        self._timer = timer
        self._state: Literal["up", "down", "dead"] = "up"

    # -- the port ------------------------------------------------------------

    def step(self, batch: TickBatch) -> StepResult:
        if self._state != "up":
            raise EngineDead(f"the engine is {self._state}")
        started = self._timer()
        with self._dying_of_any_error():
            for session_id in batch.closes:
                self._leave(session_id)
            chunks, due = self._begin(batch.appends)
            for move in self._table.compact():
                self._lockstep.move(move.source, move.target)
            if due:
                inputs = [
                    RowInput(seat.row, seat.frames, a.pcm, seat.prompt_frames > 0)
                    for a, seat in due
                ]
                outputs = self._lockstep.step(self._table.rows, inputs)
                for (append, seat), output in zip(due, outputs, strict=True):
                    seat.frames += 1
                    chunks.append(_chunk(append, seat, output))
            over = self._prompting.advance() if self._prompting is not None else None
            if over is not None:
                chunks.append(_chunk(*over, RowOutput(None, b"")))
        return StepResult(tuple(chunks), self._timer() - started, self.snapshot())

    @property
    def busy(self) -> bool:
        return bool(self._prompting)

    @property
    def max_context(self) -> int:
        return _ENDLESS

    @property
    def can_drop(self) -> bool:
        return False

    def snapshot(self) -> KvSnapshot:
        """Slots as blocks, frames as tokens."""
        ring, seats = self._lockstep.context_frames, self._table.seats
        return KvSnapshot(
            ring,
            self._table.slots,
            self._table.slots - len(seats),
            sum(min(seat.prompt_frames + seat.frames, ring) for seat in seats.values()),
            len(seats),
        )

    def shutdown(self) -> None:
        for session_id in list(self._table.seats):
            self._leave(session_id)
        self._state = "down"

    # -- inside --------------------------------------------------------------

    def _begin(
        self, appends: tuple[Append, ...]
    ) -> tuple[list[TokenChunk], list[tuple[Append, Seat]]]:
        """Error chunks of the appends that are refused, and the seats of the others."""
        refused: list[TokenChunk] = []
        due: dict[str, tuple[Append, Seat]] = {}
        for append in appends:
            session_id = append.session_id
            seat = self._table.seats.get(session_id)
            error = self._refusal(append, seat, again=session_id in due)
            if error is None:
                seat = seat or self._table.take(session_id)
                if seat is not None and append.pcm:
                    due[session_id] = append, seat
                    continue
                if seat is not None:
                    assert self._prompting is not None, append
                    self._prompting.begin(append, seat)
                    continue
                error = f"all {self._table.slots} slots are taken"
            due.pop(session_id, None)
            self._leave(session_id)
            refused.append(TokenChunk(session_id, append.epoch, (), finished=True, error=error))
        return refused, list(due.values())

    def _leave(self, session_id: str) -> None:
        self._table.leave(session_id)
        if self._prompting is not None:
            self._prompting.leave(session_id)

    def _refusal(self, append: Append, seat: Seat | None, *, again: bool) -> str | None:
        heard = seat.frames if seat is not None else 0
        prompting = self._prompting
        if again or (prompting is not None and prompting.has(append.session_id)):
            return "an append is still under way"
        if prompting is not None and not append.pcm:
            return "a prompt comes first" if seat is not None else prompting.refusal(append)
        if append.token_ids:
            return "this model takes sound, not tokens"
        if len(append.pcm) != self._lockstep.frame_bytes:
            return f"a frame has {self._lockstep.frame_bytes} bytes, not {len(append.pcm)}"
        if append.keep_tokens not in (None, heard):
            return f"what was heard cannot be taken back to {append.keep_tokens} frames"
        return None

    @contextmanager
    def _dying_of_any_error(self) -> Iterator[None]:
        """After an error inside a step, the streams of all sessions may be half advanced: none can go on."""
        try:
            yield
        except Exception as error:
            self._state = "dead"
            raise EngineDead(f"the engine failed: {type(error).__name__}: {error}") from error


def _chunk(append: Append, seat: Seat, output: RowOutput) -> TokenChunk:
    """A text token per frame, once the model has begun."""
    words = () if output.text_token is None else (output.text_token,)
    return TokenChunk(
        append.session_id,
        append.epoch,
        words,
        finished=True,
        context_tokens=seat.frames,
        pcm=output.pcm,
    )
