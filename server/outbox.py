"""What waits to be written to one client: bounded in seconds of audio and in bytes.

Late audio has no value, so nothing is dropped from the middle of a stream: past a bound `push` refuses, and the owner
closes the connection as too slow. A client that stops reading altogether shows first as a writer that makes no
progress, long before a bound is reached (kernel buffers hide megabytes), hence `stalled_s`.
"""

from collections import deque


class Outbox:
    """A queue of batches of event texts, in order."""

    def __init__(self, capacity_s: float, capacity_bytes: int) -> None:
        # Bound on queued audio, in seconds of playback.
        self._capacity_s = capacity_s
        # Bound on queued text, in characters (event texts are all but pure ASCII).
        self._capacity_bytes = capacity_bytes
        # (texts, their size, seconds of audio they carry), oldest first.
        self._batches: deque[tuple[list[str], int, float]] = deque()
        # Seconds of audio and characters not yet handed out by `pop`.
        self._audio_s = 0.0
        self._bytes = 0
        # Batches whose last text has been accepted by the socket.
        self._sent = 0
        # True from `pop` to `sent`: a batch is in the writer's hands.
        self._in_hand = False
        # What `stalled_s` saw last, and when it first saw it; None: nothing was waiting.
        self._mark: tuple[int, float] | None = None

    def push(self, texts: list[str], audio_s: float = 0.0) -> bool:
        """Queue one batch that carries `audio_s` seconds of audio; False, and nothing queued, past a bound.

        An empty queue takes any batch: one event may be larger than the bound, and a client that has read everything
        is not slow.
        """
        size = sum(map(len, texts))
        if self._batches and (
            self._audio_s + audio_s > self._capacity_s or self._bytes + size > self._capacity_bytes
        ):
            return False
        self._batches.append((texts, size, audio_s))
        self._bytes += size
        self._audio_s += audio_s
        return True

    def pop(self) -> list[str] | None:
        """The oldest batch, now in the writer's hands until `sent`; None when empty."""
        if not self._batches:
            # Sums of floats drift; an empty queue is the one moment when the truth is known.
            self._audio_s = 0.0
            return None
        texts, size, audio_s = self._batches.popleft()
        self._bytes -= size
        self._audio_s -= audio_s
        self._in_hand = True
        return texts

    def sent(self) -> None:
        """The batch in hand has been accepted by the socket."""
        self._sent += 1
        self._in_hand = False

    def stalled_s(self, now: float) -> float:
        """Seconds for which something has been waiting and nothing was sent, as seen by calls of this method."""
        if self.is_idle:
            self._mark = None
            return 0.0
        if self._mark is None or self._mark[0] != self._sent:
            self._mark = (self._sent, now)
        return now - self._mark[1]

    @property
    def is_idle(self) -> bool:
        """True if nothing waits and nothing is in the writer's hands: whoever sends now overtakes nobody."""
        return not self._batches and not self._in_hand

    def __len__(self) -> int:
        """Texts waiting."""
        return sum(len(texts) for texts, _, _ in self._batches)

    @property
    def audio_s(self) -> float:
        """Seconds of audio waiting."""
        return self._audio_s

    @property
    def size(self) -> int:
        """Characters waiting."""
        return self._bytes
