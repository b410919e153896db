"""The chain of items: order, ids, bounds, and what the model sees of it."""

import pytest

from protocol.conversation import Conversation
from protocol.errors import ProtocolError
from protocol.items import Entry, Item, Part
from protocol.kept_audio import AudioShelf


def item(item_id: str, text: str = "x") -> Item:
    part = Part(type="input_text", text=text)
    return Item(id=item_id, type="message", role="user", content=[part])


def chain(conversation: Conversation) -> list[str]:
    """The ids in order, after checking that links and lookups agree."""
    entries = list(conversation)
    ids = [entry.item.id for entry in entries]
    assert [conversation.previous_id(entry) for entry in entries] == [None, *ids][: len(ids)]
    assert conversation.last_id == (ids[-1] if ids else None)
    assert len(conversation) == len(ids)
    assert all(
        conversation.get(item_id) is entry for item_id, entry in zip(ids, entries, strict=True)
    )
    return ids


@pytest.fixture
def conversation() -> Conversation:
    conversation = Conversation("conv", max_items=5, shelf=AudioShelf(0))
    for item_id in "abc":
        conversation.append(item(item_id))
    return conversation


@pytest.mark.parametrize(
    ("after", "order"), [(None, "abcx"), ("root", "xabc"), ("a", "axbc"), ("c", "abcx")]
)
def test_insert(conversation: Conversation, after: str | None, order: str) -> None:
    """An item goes after the one named, to the front, or to the end."""
    assert isinstance(conversation.insert(item("x"), after), Entry)
    assert chain(conversation) == list(order)


def test_insert_refuses(conversation: Conversation) -> None:
    """A taken id or an unknown predecessor is refused and changes nothing."""
    for refused in (conversation.insert(item("a"), None), conversation.insert(item("x"), "nobody")):
        assert isinstance(refused, ProtocolError)
    assert chain(conversation) == list("abc")


@pytest.mark.parametrize(("gone", "rest"), [("a", "bc"), ("b", "ac"), ("c", "ab")])
def test_delete(conversation: Conversation, gone: str, rest: str) -> None:
    """Deleting relinks the neighbours."""
    assert conversation.delete(gone) is not None
    assert conversation.delete(gone) is None
    assert chain(conversation) == list(rest)


def test_delete_all(conversation: Conversation) -> None:
    """An emptied conversation starts over."""
    for item_id in "bac":
        conversation.delete(item_id)
    assert chain(conversation) == []
    conversation.append(item("z"))
    assert chain(conversation) == ["z"]


@pytest.mark.parametrize(("after", "order"), [(None, "xabc"), ("b", "abxc"), ("gone", "abcx")])
def test_place(conversation: Conversation, after: str | None, order: str) -> None:
    """An answer goes after what it answers, or last if that has gone."""
    conversation.place(item("x"), after)
    assert chain(conversation) == list(order)


def test_oldest_is_forgotten(conversation: Conversation) -> None:
    """Past the bound the oldest item goes, never the one just added."""
    for item_id in "defg":
        conversation.append(item(item_id))
    assert chain(conversation) == list("cdefg")
    conversation.insert(item("x"), "root")
    assert chain(conversation) == list("xdefg")


def test_a_bound_of_one() -> None:
    """The smallest conversation holds just the newest item."""
    conversation = Conversation("conv", max_items=1, shelf=AudioShelf(0))
    for item_id in "ab":
        conversation.append(item(item_id))
    assert chain(conversation) == ["b"]


def test_messages_leave_out_what_says_nothing(conversation: Conversation) -> None:
    """Items without words are not shown to the model, unless words are still to come."""
    conversation.append(item("empty", ""))
    awaited = conversation.append(item("awaited", ""))
    awaited.awaits_transcript = True
    assert [(m.item_id, m.audio) for m in conversation.messages()] == [
        ("a", False),
        ("b", False),
        ("c", False),
        ("awaited", True),
    ]
