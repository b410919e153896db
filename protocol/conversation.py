"""The conversation: a doubly linked chain of items, each found by id in constant time.

What `previous_item_id` says is the chain itself, at the moment the event is made. Bounded: past `max_items` the oldest
item is forgotten, so a call may last for days. Words are kept, and of their audio what fits on the shelf.
"""

import json
from collections.abc import Iterator

from protocol.commands import ContextMessage
from protocol.errors import ProtocolError, invalid_value
from protocol.items import Entry, Item, text_of
from protocol.kept_audio import AudioShelf

ROOT = "root"


class Conversation:
    """The items of one session, in order."""

    def __init__(self, conversation_id: str, max_items: int, shelf: AudioShelf) -> None:
        self.id = conversation_id
        self.shelf = shelf
        self._max_items = max_items
        self._entries: dict[str, Entry] = {}
        self._first: Entry | None = None
        self._last: Entry | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        entry = self._first
        while entry is not None:
            yield entry
            entry = entry.following

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    def get(self, item_id: str) -> Entry | None:
        """The entry of that id, if there is one."""
        return self._entries.get(item_id)

    @property
    def last_id(self) -> str | None:
        """The id a new item would follow; None while the conversation is empty."""
        return None if self._last is None else self._last.item.id

    def previous_id(self, entry: Entry) -> str | None:
        """The id of the item just before `entry`; None for the first."""
        return None if entry.preceding is None else entry.preceding.item.id

    def append(self, item: Item) -> Entry:
        """Add at the end."""
        return self._link(Entry(item), self._last)

    def insert(self, item: Item, after: str | None) -> Entry | ProtocolError:
        """Add after the item `after`, first if that is "root", last if it is None."""
        if item.id in self._entries:
            return duplicate(item.id)
        if after is None:
            return self.append(item)
        if after == ROOT:
            return self._link(Entry(item), None)
        preceding = self._entries.get(after)
        if preceding is None:
            return unknown_previous(after)
        return self._link(Entry(item), preceding)

    def place(self, item: Item, after: str | None) -> Entry:
        """Add after `after` (None: first), or last if that item has meanwhile gone."""
        preceding = None if after is None else self._entries.get(after, self._last)
        return self._link(Entry(item), preceding)

    def delete(self, item_id: str) -> Entry | None:
        """Take an item out of the chain; None if there is no such item."""
        entry = self._entries.pop(item_id, None)
        if entry is not None:
            self._unlink(entry)
            if entry.clip is not None:
                entry.clip.forget()
        return entry

    def messages(self) -> tuple[ContextMessage, ...]:
        """The conversation as the model must see it: what was said and heard, nothing else."""
        return tuple(message for entry in self if (message := message_of(entry)) is not None)

    def _link(self, entry: Entry, preceding: Entry | None) -> Entry:
        following = self._first if preceding is None else preceding.following
        entry.preceding, entry.following = preceding, following
        if preceding is None:
            self._first = entry
        else:
            preceding.following = entry
        if following is None:
            self._last = entry
        else:
            following.preceding = entry
        self._entries[entry.item.id] = entry
        self._forget_oldest(entry)
        return entry

    def _unlink(self, entry: Entry) -> None:
        if entry.preceding is None:
            self._first = entry.following
        else:
            entry.preceding.following = entry.following
        if entry.following is None:
            self._last = entry.preceding
        else:
            entry.following.preceding = entry.preceding

    def _forget_oldest(self, newest: Entry) -> None:
        if len(self._entries) > self._max_items and self._first is not None:
            oldest = self._first if self._first is not newest else self._first.following
            if oldest is not None:
                self.delete(oldest.item.id)


def message_of(entry: Entry) -> ContextMessage | None:
    """What the model sees of an item; None if that is nothing (an answer nobody heard, say)."""
    item = entry.item
    if item.type == "function_call":
        if item.status != "completed":
            return None  # being written, or cut off: nobody will run it
        return ContextMessage("assistant", call_text(item), item.id, call=True)
    if item.type == "function_call_output":
        return ContextMessage("tool", str(item.output), item.id)
    text = text_of(item) if entry.spoken is None else entry.spoken.heard()
    if not text and not entry.awaits_transcript and not entry.shows:
        return None
    assert item.role, item
    return ContextMessage(item.role, text, item.id, entry.awaits_transcript)


def call_text(item: Item) -> str:
    """A call as the model writes one: a JSON object of name and arguments, the latter exactly as they came."""
    name = json.dumps(item.name, ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {item.arguments}}}'


def duplicate(item_id: str) -> ProtocolError:
    """The error for an id that is taken."""
    return ProtocolError(
        "item_create_duplicate_item_id", f"An item with id '{item_id}' already exists.", "item.id"
    )


def unknown_previous(item_id: str) -> ProtocolError:
    """The error for a `previous_item_id` that names nothing."""
    return invalid_value(
        f"There is no item with id '{item_id}' to insert after.", "previous_item_id"
    )
