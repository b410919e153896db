"""Identifiers as the API shapes them: a prefix that says what it names, then something unique."""

import secrets

_SALT_BYTES = 8  # 16 hex digits: a client cannot guess another session's ids


class IdFactory:
    """Counts up under a random salt: unique across sessions, ordered within one, and cheap (one per audio frame).

    Give a `salt` to make every id predictable.
    """

    __slots__ = ("_event_head", "_issued", "_salt")

    def __init__(self, salt: str | None = None) -> None:
        self._salt = secrets.token_hex(_SALT_BYTES) if salt is None else salt
        self._event_head = f"event_{self._salt}"
        self._issued = 0

    def event(self) -> str:
        """An `event_…` id; one per server event."""
        self._issued = issued = self._issued + 1
        return f"{self._event_head}{issued:05x}"

    def new(self, prefix: str) -> str:
        """A `prefix_…` id, such as `item_…` or `resp_…`."""
        self._issued += 1
        return f"{prefix}_{self._salt}{self._issued:05x}"
