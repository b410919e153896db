"""What a client asks of the conversation's items: create, delete, retrieve, truncate.

A function's output may arrive while the answer that called it is still being given. The real service adds such items
once the answer is done (recorded in mid-2026), so that calls and outputs do not interleave; so do we, along with any
item that is to follow one of them.
"""

import msgspec

from protocol.client_events import ItemCreate, ItemDelete, ItemRetrieve, ItemTruncate
from protocol.conversation import Conversation, duplicate, unknown_previous
from protocol.errors import ProtocolError, invalid_value
from protocol.ids import IdFactory
from protocol.items import Item, NewItem, parsed
from protocol.server_events import ServerEvents
from protocol.session_config import SessionConfig


class _Deferred(msgspec.Struct, frozen=True):
    item: Item
    after: str | None
    shows: bool  # there are images in it


class ItemRequests:
    """Carries out item events; each returns what is wrong with it, if anything, and `create` else the new item."""

    def __init__(
        self, conversation: Conversation, events: ServerEvents, ids: IdFactory, max_deferred: int
    ) -> None:
        self._conversation = conversation
        self._events = events
        self._ids = ids
        self._max_deferred = max_deferred
        self._deferred: dict[str, _Deferred] = {}  # by item id, in order of arrival

    def create(
        self, event: ItemCreate, *, reserved_id: str | None, answering: bool, sees: bool
    ) -> NewItem | ProtocolError:
        """Add an item, now or when the answer in progress is done.

        `reserved_id` is promised to another item; `sees`: images are taken.
        """
        new = parsed(event.item, "item", self._ids.new("item"), self._ids.new("call"))
        if isinstance(new, ProtocolError):
            return new
        if new.shown and not sees:
            return invalid_value("This model takes no images.", "item.content")
        item = new.item
        if item.id in self._deferred or item.id == reserved_id:
            return duplicate(item.id)
        after = event.previous_item_id
        waits = item.type == "function_call_output" or after in self._deferred
        if answering and waits:
            return self._defer(item, after, bool(new.shown)) or new
        entry = self._conversation.insert(item, after)
        if isinstance(entry, ProtocolError):
            return entry
        entry.shows = bool(new.shown)
        self.announce(item)
        return new

    def delete(self, event: ItemDelete) -> ProtocolError | None:
        """Remove an item, also one that is still waiting to be added."""
        waiting = self._deferred.pop(event.item_id, None)
        if waiting is None and self._conversation.delete(event.item_id) is None:
            return _unknown("item_delete_invalid_item_id", event.item_id)
        self._events.item_deleted(event.item_id)
        return None

    def retrieve(self, event: ItemRetrieve, config: SessionConfig) -> ProtocolError | None:
        """Show an item as it is now, with its audio if that is in the session's format and still kept."""
        entry = self._conversation.get(event.item_id)
        waiting = self._deferred.get(event.item_id)
        if entry is not None:
            said_here = entry.item.role == "assistant"
            audio_format = config.output_format if said_here else config.input_format
            self._events.item_retrieved(entry.with_audio(audio_format))
        elif waiting is not None:
            self._events.item_retrieved(waiting.item)
        else:
            return _unknown("item_retrieve_invalid_item_id", event.item_id)
        return None

    def truncate(self, event: ItemTruncate) -> ProtocolError | None:
        """Forget what the caller did not hear. Past the end means all of it: an error there ends pipecat's session."""
        entry = self._conversation.get(event.item_id)
        if entry is None:
            return _unknown("item_truncate_invalid_item_id", event.item_id)
        if entry.item.role != "assistant":
            return invalid_value("Only an assistant's message can be truncated.", "item_id")
        if event.content_index != 0:
            return invalid_value(
                f"Invalid value: {event.content_index}. The message has one content part.",
                "content_index",
            )
        kept_ms = 0  # an answer in text has no audio to cut
        if entry.spoken is not None:
            kept_ms = entry.spoken.cut(int(event.audio_end_ms))
            if entry.clip is not None:
                entry.clip.cut(kept_ms)
            if entry.item.status != "in_progress":
                entry.remember_heard()
        self._events.item_truncated(event.item_id, 0, kept_ms)
        return None

    def add_deferred(self) -> None:
        """The answer is done: add what waited for it."""
        deferred, self._deferred = self._deferred, {}
        for waiting in deferred.values():
            after = waiting.after
            known = after is None or after == "root" or after in self._conversation
            entry = self._conversation.insert(waiting.item, after if known else None)
            assert not isinstance(entry, ProtocolError), entry
            entry.shows = waiting.shows
            self.announce(waiting.item)

    def announce(self, item: Item) -> None:
        """Tell the client of an item that is complete as it is added."""
        entry = self._conversation.get(item.id)
        assert entry is not None, item.id
        previous_id = self._conversation.previous_id(entry)
        self._events.item_added(item, previous_id)
        self._events.item_done(item, previous_id)

    def _defer(self, item: Item, after: str | None, shows: bool) -> ProtocolError | None:
        if item.id in self._conversation:
            return duplicate(item.id)
        known = after is None or after == "root" or after in self._conversation
        if not known and after not in self._deferred:
            return unknown_previous(str(after))
        if len(self._deferred) >= self._max_deferred:
            return ProtocolError(
                "rate_limit_exceeded",
                f"At most {self._max_deferred} items may wait for the response in progress.",
            )
        self._deferred[item.id] = _Deferred(item, after, shows)
        return None


def _unknown(code: str, item_id: str) -> ProtocolError:
    return ProtocolError(code, f"There is no item with id '{item_id}'.", "item_id")
