"""The event loop of the server process."""

import uvloop

from engine.clock import monotonic


class FineLoop(uvloop.Loop):  # type: ignore[misc]  # skipped by mypy: not on Windows
    """uvloop with the time in full: its own is counted in whole milliseconds.

    An engine step may take two of them, and admission learns what a step costs from steps.
    """

    time = staticmethod(monotonic)
