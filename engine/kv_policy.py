"""How much of a call stays in the KV cache. One interface, pure: lengths in, a decision out.

    [0, sink)      the header (chat header, instructions): never dropped
    [sink, tail)   forgotten, once the session has grown past sink + window + slack
    [tail, end)    the window: the newest tokens

`anchored` asks the backend to drop the middle and renumber what follows (exact where keys can be shifted). `recycle`
re-prefills [sink | window] instead: the same context at the price of a prefill, for backends that cannot drop.
`sliding` leaves it to the engine's own sliding-window attention and `unbounded` to nobody.
"""

from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["anchored", "recycle", "sliding", "unbounded"]


@dataclass(frozen=True, slots=True)
class KvPolicy:
    """Tokens. `slack` is how far a session may outgrow its window before it is cut back."""

    name: PolicyName = "anchored"
    window_tokens: int = 1024
    slack_tokens: int = 256

    def __post_init__(self) -> None:
        if self.window_tokens <= 0 or self.slack_tokens <= 0:
            raise ValueError("window_tokens and slack_tokens must be positive")

    @property
    def bounded(self) -> bool:
        """True if this side keeps the context within sink + window + slack."""
        return self.name in ("anchored", "recycle")

    def limit(self, sink: int, max_context: int) -> int:
        """Longest context that a session with this header may reach before it must be cut back."""
        if not self.bounded:
            return max_context
        return min(sink + self.window_tokens + self.slack_tokens, max_context)

    def cut(
        self, length: int, sink: int, block_size: int, spare: int = 0
    ) -> tuple[int, int] | None:
        """The tokens [start, stop) to drop so that at most a window is left behind the sink, or None if none need go.

        Whole blocks only, so what is left is the window plus less than a block. `spare` tokens are about to be
        appended: room is made for them within the slack.
        """
        if not self.bounded or length + spare <= sink + self.window_tokens + self.slack_tokens:
            return None
        start = -(-sink // block_size) * block_size
        stop = start + max(0, length - start - self.window_tokens) // block_size * block_size
        return (start, stop) if stop > start else None

    def plateau_blocks(self, sink: int, tick_tokens: int, block_size: int) -> int:
        """Most blocks one session ever holds: what admission must reserve."""
        tokens = sink + self.window_tokens + self.slack_tokens + tick_tokens
        return -(-tokens // block_size) + 1
