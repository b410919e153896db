"""What was said in a Live session so far, as the model must see it. Bounded: the oldest message goes first."""

from protocol.commands import ContextMessage
from protocol.ids import IdFactory
from protocol.live.client_events import InitialMessage
from protocol.live.playout import Role, Said

_ROLES: dict[str, Role] = {"developer": "system", "user": "user", "assistant": "assistant"}


class History:
    """The messages, oldest first. An answer is in it from the moment it is asked for, and grows as it is played."""

    def __init__(self, ids: IdFactory, max_messages: int) -> None:
        self._ids = ids
        self._max_messages = max_messages
        self._said: list[Said] = []
        # When the turns were spoken that still await their words, by item id: (from, to) in ms.
        self._spans: dict[str, tuple[int, int]] = {}

    def add(self, role: Role, text: str) -> Said:
        """One more message."""
        said = Said(role, self._ids.new("item"), text)
        self._said.append(said)
        for gone in self._said[: -self._max_messages]:
            self._spans.pop(gone.item_id, None)
        del self._said[: -self._max_messages]
        return said

    def add_initial(self, message: InitialMessage) -> None:
        """A message that the client brought along."""
        self.add(_ROLES[message.role], " ".join(part.text for part in message.content))

    def add_turn(self, from_ms: int, to_ms: int) -> str:
        """The caller has spoken; the words are still to come. Returns the turn's item id."""
        said = self.add("user", "")
        said.awaits_words = True
        self._spans[said.item_id] = (from_ms, to_ms)
        return said.item_id

    def settle(self, item_id: str, text: str) -> tuple[int, int] | None:
        """The words of a turn: when it was spoken, or None if nobody waits for them any more."""
        span = self._spans.pop(item_id, None)
        if span is None:
            return None
        for said in reversed(self._said):
            if said.item_id == item_id:
                said.text, said.awaits_words = text, False
        return span

    def messages(self) -> tuple[ContextMessage, ...]:
        """For the model."""
        return tuple(
            ContextMessage(said.role, said.text, said.item_id, said.awaits_words)
            for said in self._said
            if said.text or said.awaits_words
        )
