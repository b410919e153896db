"""What is worth keeping from one run to the next, as JSON. Pure: reading and writing files is somebody else's business.

One state belongs to one (model, device, engine version, window): a cost model of another is worse than none.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 3


@dataclass(frozen=True, slots=True)
class Learned:
    """The controller's memory."""

    key: str  # model, device, engine version, window
    cost: dict[str, Any]  # CostModel.export
    tail: tuple[float, float, float]  # TailRatio.known …
    heaviest: int  # … the band of load it is from …
    tail_weight: float  # … and the ticks it rests on
    served: float  # Evidence.served, in full-age sessions, …
    proven: float  # … and as far as there were ticks enough to witness it …
    capacity: float  # … when the model allowed so many
    limit: float  # AimdLimit.value
    join_s: float  # engine time of a new session's header
    calibrated: bool = False  # measured at full window at start, not picked up while serving

    def dumps(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1)


def loads(text: str, key: str) -> Learned | None:
    """The state in `text`; None if it is another's, of another version, or damaged."""
    try:
        found = json.loads(text)
        if found.pop("version") != VERSION or found.get("key") != key:
            return None
        slowest, likely, even_share = found["tail"]
        state = Learned(**{**found, "tail": (slowest, likely, even_share)})
        loads = (state.served, state.proven, state.capacity, state.limit)
        numbers = (*state.tail, state.tail_weight, *loads, state.join_s)
        if any(not 0 <= float(number) < 1e9 for number in numbers):
            return None
        return state
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
