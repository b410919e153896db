"""What passes over the WebSockets, counted by direction and type: on the path of every frame."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from server.families import counter
from server.wire_types import CLIENT_EVENT_TYPES, SERVER_EVENT_TYPES

# Every event of ours begins with its type.
_TYPE_AT = len('{"type":"')


class Traffic:
    """Events and payload bytes over the WebSockets, by direction and type."""

    def __init__(self) -> None:
        self._in: dict[str, int] = dict.fromkeys((*CLIENT_EVENT_TYPES, "other"), 0)
        self._out: dict[str, int] = dict.fromkeys((*SERVER_EVENT_TYPES, "other"), 0)
        self._bytes_in = 0
        self._bytes_out = 0

    def received(self, kind: str, payload: str | bytes) -> None:
        """Count one event of type `kind` from a client."""
        self._in[kind if kind in self._in else "other"] += 1
        self._bytes_in += len(payload) if payload.isascii() else _size(payload)

    def sent(self, text: str) -> str:
        """Count one event to a client; its type. Flat, since it runs for every frame (0.4 us)."""
        kind = text[_TYPE_AT : text.index('"', _TYPE_AT)]
        self._out[kind if kind in self._out else "other"] += 1
        self._bytes_out += len(text) if text.isascii() else _size(text)
        return kind

    def collect(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "metronome_ws_events", "WebSocket events.", labels=["direction", "type"]
        )
        for direction, counts in (("in", self._in), ("out", self._out)):
            for kind, count in counts.items():
                events.add_metric([direction, kind], count)
        yield events
        yield counter(
            "ws_bytes",
            "Payload bytes.",
            "direction",
            (("in", self._bytes_in), ("out", self._bytes_out)),
        )


def _size(payload: str | bytes) -> int:
    """Bytes on the wire; constant time for ASCII, which all audio is."""
    if isinstance(payload, bytes) or payload.isascii():
        return len(payload)
    return len(payload.encode(errors="replace"))
