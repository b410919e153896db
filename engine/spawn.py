"""How a call starts a job under the engine: its session's id and the job; a job that breaks fails that session only."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Spawn = Callable[[str, Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
