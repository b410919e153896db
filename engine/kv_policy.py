"""How much of a call stays in the KV cache. One interface, pure: lengths in, a decision out.

    [0, sink)      the header (chat header, instructions): never dropped
    [sink, tail)   forgotten, once the session has grown past sink + window + slack
    [tail, end)    the window: the newest tokens

`anchored` asks the backend to drop the middle and renumber what follows (exact where keys can be shifted). `recycle`
re-prefills [sink | window] instead: the same context at the price of a prefill, for backends that cannot drop.
`sliding` leaves it to the engine's own sliding-window attention and `unbounded` to nobody. `full` is one session's wish
(truncation disabled): everything is kept up to what the deployment has reserved for a session, and then it is refused.
"""

from dataclasses import dataclass, replace
from typing import Literal

PolicyName = Literal["anchored", "recycle", "sliding", "unbounded", "full"]


@dataclass(frozen=True, slots=True)
class KvPolicy:
    """Tokens. `slack` is how far a session may outgrow its window before it is cut back."""

    name: PolicyName = "anchored"
    window_tokens: int = 1024
    slack_tokens: int = 256
    header_tokens: int | None = (
        None  # reserved for the header; a longer one takes from its window. None: unlimited
    )

    def __post_init__(self) -> None:
        if self.window_tokens <= 0 or self.slack_tokens <= 0:
            raise ValueError("window_tokens and slack_tokens must be positive")

    def within(self, deployment: "KvPolicy") -> "KvPolicy":
        """This policy, holding no more than the deployment has reserved for a session."""
        if not deployment.bounded:
            return self
        if not self.bounded:  # never cut, so refused where the plateau ends
            return replace(deployment, name="full")
        total = min(self.total_tokens, deployment.total_tokens)
        window = min(max(1, total * self.window_tokens // self.total_tokens), total - 1)
        return replace(deployment, window_tokens=window, slack_tokens=total - window)

    @property
    def total_tokens(self) -> int:
        """Tokens behind the header at most."""
        return self.window_tokens + self.slack_tokens

    @property
    def truncates(self) -> bool:
        """False if a conversation that does not fit is refused rather than cut."""
        return self.name not in ("unbounded", "full")

    @property
    def bounded(self) -> bool:
        """True if this side keeps the context within sink + window + slack."""
        return self.name in ("anchored", "recycle")

    @property
    def messages_at_most(self) -> int:
        """Newest messages that can matter: a message has a role, an end and at least one word."""
        if not self.bounded:
            return 1_000_000
        return (self.window_tokens + self.slack_tokens) // 3 + 1

    def limit(self, sink: int, max_context: int) -> int:
        """Longest context that a session with this header may reach before it must be cut back."""
        if self.name in ("sliding", "unbounded"):
            return max_context
        header = sink if self.header_tokens is None else min(sink, self.header_tokens)
        return min(header + self.total_tokens, max_context)

    def room(self, wanted: int) -> int:
        """Tokens to keep free for an answer of at most `wanted`: a bounded context is cut back while it grows."""
        return min(wanted, self.slack_tokens // 2) if self.name == "anchored" else wanted

    def cut(
        self, length: int, sink: int, limit: int, block_size: int, spare: int = 0
    ) -> tuple[int, int] | None:
        """The tokens [start, stop) to drop so that `length + spare` fits `limit`, or None if it does already.

        Whole blocks only, and as much of the window as fits: up to a block goes to each end's rounding.
        """
        if not self.bounded or length + spare <= limit:
            return None
        keep = min(self.window_tokens, limit - sink - spare - 2 * (block_size - 1))
        start = -(-sink // block_size) * block_size
        stop = start + max(0, length - start - max(0, keep)) // block_size * block_size
        return (start, stop) if stop > start else None

    def settled_tokens(self, sink: int) -> int:
        """What a session at its plateau holds in the mean over time: it grows by its slack, then is cut back."""
        return sink + self.window_tokens + self.slack_tokens // 2

    def plateau_blocks(self, sink: int, tick_tokens: int, block_size: int) -> int:
        """Most blocks one session ever holds: what admission must reserve."""
        tokens = sink + self.window_tokens + self.slack_tokens + tick_tokens
        return -(-tokens // block_size) + 1
