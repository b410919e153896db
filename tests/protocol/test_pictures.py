"""Images in user items: which are taken, what the engine is told, and what the client is."""

import base64
from typing import Any

import pytest
from support.realtime_peer import USAGE, Peer

from protocol.commands import CreateResponse, ShowItem
from protocol.pictures import MAX_IMAGE_BYTES, MAX_IMAGES

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
JPEG = b"\xff\xd8\xff\xe0" + bytes(20)
WEBP = b"RIFF\x14\0\0\0WEBP" + bytes(20)


def url(data: bytes = PNG, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def image(image_url: Any, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": image_url, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def user(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(content), **more}


@pytest.fixture
def peer() -> Peer:
    peer = Peer(sees_images=True)
    peer.events()
    return peer


@pytest.mark.parametrize(("data", "kind"), [(PNG, "png"), (JPEG, "jpeg"), (WEBP, "webp")])
def test_an_image_reaches_the_engine_as_the_file_it_is(peer: Peer, data: bytes, kind: str) -> None:
    """And the item is told without it, so that no event grows past what clients take."""
    item = user(text("look"), image(url(data, kind), detail="high"), text("well?"), id="seen")
    commands = peer.sends("conversation.item.create", item=item)
    assert commands == [ShowItem("seen", ("look", data, "well?"))]
    added, done = peer.events()
    assert added["item"] == done["item"]
    assert added["item"]["content"] == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "detail": "high"},
        {"type": "input_text", "text": "well?"},
    ]


def test_an_item_of_images_alone_is_in_the_context_of_an_answer(peer: Peer) -> None:
    """Though it has no words; and it is gone once it is deleted."""
    peer.sends("conversation.item.create", item=user(image(url()), id="seen"))
    assert [m.item_id for m in peer.asks(conversation="none").messages] == ["seen"]
    peer.sends("conversation.item.delete", item_id="seen")
    assert peer.asks(conversation="none").messages == ()


@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        ({"type": "input_image"}, "missing_required_parameter", ".image_url"),
        (image("https://example.org/a.png"), "invalid_value", ".image_url"),
        (image("data:image/gif;base64,R0lGODlh"), "invalid_value", ".image_url"),
        (image("data:image/png,abc"), "invalid_value", ".image_url"),
        (image("data:image/png;base64,@@@@"), "invalid_value", ".image_url"),
        (image("data:image/png;base64,"), "invalid_value", ".image_url"),
        (image(url(JPEG, "png")), "invalid_value", ".image_url"),
        (image(url(PNG, "webp")), "invalid_value", ".image_url"),
        (image(url(PNG + bytes(MAX_IMAGE_BYTES))), "invalid_value", ".image_url"),
        (image(7), "invalid_type", ".image_url"),
        (image(url(), detail="vast"), "invalid_value", ".detail"),
    ],
)
def test_what_is_no_image_is_refused_and_changes_nothing(
    peer: Peer, part: dict[str, Any], code: str, param: str
) -> None:
    """One error event that names the part."""
    assert peer.sends("conversation.item.create", item=user(text("a"), part)) == []
    error = peer.only_event()["error"]
    assert (error["code"], error["param"]) == (code, f"item.content[1]{param}")
    assert peer.asks().messages == ()


def test_an_item_has_so_many_images_and_no_more(peer: Peer) -> None:
    """The whole item is refused."""
    content = [image(url())] * MAX_IMAGES
    assert peer.sends("conversation.item.create", item=user(*content))
    peer.events()
    assert not peer.sends("conversation.item.create", item=user(*content, image(url())))
    assert peer.only_event()["error"]["param"] == "item.content"


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_the_user_shows_images(peer: Peer, role: str) -> None:
    """As in the API."""
    item = user(image(url())) | {"role": role}
    assert not peer.sends("conversation.item.create", item=item)
    assert peer.only_event()["error"]["param"] == "item.content[0].type"


def test_a_model_that_sees_nothing_says_so_and_loses_nothing() -> None:
    """The conversation is as before, and the next item is taken."""
    peer = Peer()
    peer.events()
    assert not peer.sends("conversation.item.create", item=user(text("a"), image(url())))
    error = peer.only_event()["error"]
    assert (error["message"], error["param"]) == ("This model takes no images.", "item.content")
    peer.says("Hello", "typed")
    assert [m.item_id for m in peer.asks().messages] == ["typed"]


def test_images_beside_the_conversation_are_refused(peer: Peer) -> None:
    """What an answer is given as input has words only; it may refer to an item that shows something."""
    response = {"conversation": "none", "input": [user(image(url()))]}
    assert not peer.sends("response.create", response=response)
    assert peer.only_event()["error"]["param"] == "response.input[0].content"
    peer.sends("conversation.item.create", item=user(image(url()), id="seen"))
    response["input"] = [{"type": "item_reference", "id": "seen"}]
    (command,) = peer.sends("response.create", response=response)
    assert isinstance(command, CreateResponse)
    assert [m.item_id for m in command.messages] == ["seen"]


def test_an_image_that_waits_for_the_answer_in_progress_is_looked_at_at_once(peer: Peer) -> None:
    """It follows a function's output, which is added when the answer is done; then it is in the conversation."""
    order = peer.asks()
    output = {"type": "function_call_output", "call_id": "c", "output": "{}", "id": "out"}
    peer.sends("conversation.item.create", item=output)
    item = user(image(url()), id="seen")
    assert peer.sends("conversation.item.create", item=item, previous_item_id="out") == [
        ShowItem("seen", (PNG,))
    ]
    peer.connection.response_ended(order.response_id, "completed", USAGE, None)
    assert "seen" in [m.item_id for m in peer.asks().messages]
