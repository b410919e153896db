"""Cuts a stream of appends of any size into frames of one tick."""


class Framer:
    """Holds less than one frame; what it holds is bounded by `frame_bytes`."""

    def __init__(self, frame_bytes: int) -> None:
        if frame_bytes <= 0 or frame_bytes % 2:
            raise ValueError(f"a pcm16 frame cannot have {frame_bytes} bytes")
        self.frame_bytes = frame_bytes
        self._rest = b""

    def push(self, pcm: bytes) -> list[bytes]:
        """The frames that `pcm` completes, in order."""
        size = self.frame_bytes
        if not self._rest and len(pcm) == size:  # the common case: the client sends ticks
            return [pcm]
        data = self._rest + pcm if self._rest else pcm
        whole = len(data) - len(data) % size
        self._rest = data[whole:]
        return [data[i : i + size] for i in range(0, whole, size)]

    def flush(self) -> bytes:
        """The incomplete frame, which is then forgotten; empty if there is none."""
        rest, self._rest = self._rest, b""
        return rest

    @property
    def pending_bytes(self) -> int:
        return len(self._rest)
