"""What a client shows: looked at one after the other, in the order it came, off the beat.

Decoding and scaling an image takes milliseconds, so it happens in the pool; until it is done an answer waits.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.models.base import AudioChunk
from engine.models.picture import PictureError
from engine.pool import Pool

MAX_WAITING = 16  # items being looked at or waiting for it; more are refused


class Sight(Protocol):
    """A model that can be shown images: its `spec.prefill_per_image` is above 0."""

    def see(self, content: Sequence[str | bytes]) -> AudioChunk:
        """Words and image files, as tokens and features. [pool]

        Raises:
            PictureError: an image cannot be shown.
        """
        ...

    def show(self, state: Any, content: AudioChunk) -> None:
        """Frame-locked models: chunks from the next on have in them what `see` made of it. [loop]"""
        ...


class Showing:
    """Of one session; called on the loop."""

    def __init__(
        self,
        pool: Pool,
        model: Sight,
        saw: Callable[[str, AudioChunk], None],
        failed: Callable[[str, str], None],
    ) -> None:
        """`saw` is given an item's id and what stands for it, `failed` its id and what is wrong with it."""
        self._pool = pool
        self._model = model
        self._saw = saw
        self._failed = failed
        self._order = asyncio.Lock()  # fair: the first to ask is the first to have it
        self._waiting = 0

    async def look(self, item_id: str, content: Sequence[str | bytes]) -> None:
        """Words and image files of one item."""
        if self._waiting >= MAX_WAITING:
            self._failed(item_id, "Too many images are waiting to be looked at.")
            return
        self._waiting += 1
        try:
            async with self._order:
                chunk = await self._pool.run(self._model.see, content)
                self._saw(item_id, chunk)
        except PictureError as error:
            self._failed(item_id, str(error))
        finally:
            self._waiting -= 1

    async def done(self) -> None:
        """Everything shown so far has been looked at."""
        async with self._order:
            pass
