"""A conversation with calls and their results as turns of ChatML: which messages share a turn.

A call joins the assistant's turn before it; results of calls made together share a turn of the user's. A message is
still one run of tokens, so that a window can let go of it; its run is the part of the turn that it is.
"""

from collections.abc import Callable, Sequence

from engine.models.base import Message
from engine.models.tools import Then

Sampled = Callable[[Message], Sequence[int]]  # the tokens a model wrote a message with, if known


class Place:
    """Where a message stands among its neighbours."""

    __slots__ = ("closes", "follows_call", "follows_words", "is_followed_by_call", "opens")

    def __init__(self, before: Message | None, message: Message, after: Message | Then) -> None:
        spoken = message.role == "assistant"
        self.opens = not _shares_turn(before, message)
        self.follows_words = spoken and not self.opens and before is not None and not before.call
        self.follows_call = spoken and not self.opens and before is not None and before.call
        self.is_followed_by_call = spoken and (after == "call" or _is_call(after))
        self.closes = not (
            self.is_followed_by_call
            or (spoken and message.call and after == "more")
            or (isinstance(after, Message) and _shares_turn(message, after))
        )


def places(messages: Sequence[Message], then: Then) -> list[Place]:
    """The place of each message; `then` says what comes after the last."""
    around: list[Message | None] = [None, *messages]
    following: list[Message | Then] = [*messages[1:], then]
    return [
        Place(before, message, after)
        for before, message, after in zip(around, messages, following, strict=False)
    ]


def _is_call(after: Message | Then) -> bool:
    return isinstance(after, Message) and after.role == "assistant" and after.call


def _shares_turn(before: Message | None, message: Message) -> bool:
    if before is None:
        return False
    if message.role == "tool":
        return before.role == "tool"
    return message.role == "assistant" and message.call and before.role == "assistant"
