"""What a cascade keeps of one call: the caller's audio and turns, and what the assistant wrote."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence

from engine.models.base import SessionSetup
from engine.models.caller_turns import CallerTurns
from engine.models.chat import Detokenizer
from engine.speech.ports import Samples

_MAX_REMEMBERED = (
    4096  # answers whose tokens are known, hours of them; older ones are tokenised again
)
_CUT_SHORT_AMONG = 8  # newest answers that a message may be the beginning of


class Caller(CallerTurns):
    """One session's state."""

    def __init__(self, setup: SessionSetup, vad_state: Samples, detokenizer: Detokenizer) -> None:
        super().__init__(setup, vad_state)
        self.detokenizer = detokenizer  # only the loop touches it
        self._sampled: OrderedDict[str, tuple[int, ...]] = (
            OrderedDict()
        )  # text of an answer -> its tokens

    def remember(self, text: str, token_ids: Sequence[int]) -> None:
        """Keep the tokens that an answer was written with; the oldest answer goes past the bound."""
        with self._lock:
            self._store(text, tuple(token_ids))

    def remembered(self, text: str) -> tuple[int, ...]:
        """The tokens of the answer that is or, before it was cut short, began with `text`; else none."""
        with self._lock:
            if text in self._sampled or not text:
                return self._sampled.get(text, ())
            newest = itertools.islice(reversed(self._sampled.items()), _CUT_SHORT_AMONG)
            for whole, tokens in newest:
                if whole.startswith(text):
                    self._store(text, tokens)  # found again when it is no longer among the newest
                    return tokens
            return ()

    def _store(self, text: str, tokens: tuple[int, ...]) -> None:
        self._sampled[text] = tokens
        self._sampled.move_to_end(text)
        if len(self._sampled) > _MAX_REMEMBERED:
            self._sampled.popitem(last=False)
