"""What a client's report must show: the things its user would notice. Each check raises AssertionError."""

import json
from collections.abc import Callable, Mapping
from typing import Any

Report = Mapping[str, Any]

HEARD = (
    "speech lasting one point six seconds"  # what the simulated transcriber makes of the recording
)
ASKED = {
    "typed": "Tell me something about rivers.",
    "spoken": HEARD,
    "tool": "Please use get_weather for Paris.",
}


def heard_well(turn: Mapping[str, Any], words: int = 6, *, alone: bool = True) -> None:
    """The answer was audible, `words` long at least, and what was streamed is what the client keeps of it.

    Not `alone`: the client may have asked for another answer by itself before it was looked at.
    """
    assert turn["audio_s"] > words / 10
    assert turn["loudness"] > 0.02
    assert len(turn["words"].split()) >= words
    streamed, kept = turn["words"], turn["item_words"]
    assert streamed == kept if alone else streamed.startswith(kept)


def typed_turn(report: Report) -> None:
    """A typed question is answered aloud."""
    heard_well(report["typed"])


def spoken_turn(report: Report) -> None:
    """The server finds the end of a spoken question, understands it and answers."""
    heard_well(report["spoken"])
    assert report["spoken"]["heard"] == HEARD


def tool_turn(report: Report) -> None:
    """The server calls the client's function with arguments of its schema, and answers its result."""
    (call,) = report["tool"]["calls"]
    assert call["name"] == "get_weather"
    assert isinstance(json.loads(call["arguments"])["city"], str)
    heard_well(report["tool"])


def barge_in(report: Report) -> None:
    """An answer is interrupted by the caller's voice, and what the caller said is answered."""
    assert report["barge_in"]["interrupted"]
    heard_well(report["barge_in"])


def history(report: Report) -> None:
    """The client remembers both sides, in the order in which they spoke."""
    told = report["history"]
    assert [role for role, _ in told] == ["user", "assistant"] * (len(told) // 2)
    first = [name for name in ASKED if name in report]
    asked = [words for role, words in told if role == "user"]
    assert asked[: len(first)] == [ASKED[name] for name in first]
    assert asked[-1] == HEARD  # what interrupted the last answer but one
    answers = [words for role, words in told if role == "assistant"]
    # What was still to be played when the caller spoke again was not heard, and is not remembered.
    for name, words in zip(
        [*first, "barge_in"], [*answers[: len(first)], answers[-1]], strict=True
    ):
        assert words
        assert report[name]["item_words"].startswith(words)


def second_session(report: Report) -> None:
    """The first session leaves nothing behind that would harm the next."""
    heard_well(report["second"])


FEATURES: dict[str, Callable[[Report], None]] = {
    "typed turn": typed_turn,
    "spoken turn": spoken_turn,
    "tool turn": tool_turn,
    "barge-in": barge_in,
    "history": history,
    "second session": second_session,
}


def shows(report: Report, feature: str) -> bool:
    """Whether the report passes the check of a feature."""
    try:
        FEATURES[feature](report)
    except (AssertionError, KeyError, ValueError):
        return False
    return True
