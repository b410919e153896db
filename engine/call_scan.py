"""Watches an answer for the call that a model begins of its own accord. Pure.

    "Let me look that up.\\n<tool_call>\\n{…"   a model that knows tools marks its calls, anywhere in its words
    '{"name": "get_weather", "arguments": {…'   one that does not can only begin with a call, as a system block shows it

Words come out as soon as they cannot belong to a call any more: at worst a mark's length later than they were written.
"""

import json
import re
from collections.abc import Collection

from engine.models.tools import CallMark

_BARE = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*\{')
_LONGEST_OPENING = 200  # characters; a name is far shorter


class CallScanner:
    """Text of one answer in, words out."""

    def __init__(self, mark: CallMark | None, names: Collection[str]) -> None:
        """`names`: of the functions that may be called; none: nothing is looked for."""
        self.found = False  # a call has begun: nothing that follows is words
        self.name = ""  # of the function, where the opening says it
        self._mark = mark.text if mark is not None else ""
        self._names = names
        self._held = ""  # may belong to a call
        self._begun = False  # some words are out

    def feed(self, text: str) -> str:
        """The words that are certain now."""
        if self.found or not text:
            return ""
        if not self._names:
            return text
        self._held += text
        words = self._marked() if self._mark else self._bare()
        self._held = self._held[len(words) :]
        self._begun = self._begun or bool(words)
        return words

    def rest(self) -> str:
        """The answer is over: what was held back were words after all."""
        held, self._held = self._held, ""
        return "" if self.found else held

    def _marked(self) -> str:
        words, mark, _ = self._held.partition(self._mark)
        if mark:
            self.found = True
            return words.rstrip()
        for length in range(min(len(self._mark) - 1, len(words)), 0, -1):
            if words.endswith(self._mark[:length]):
                return words[:-length].rstrip()  # a line break before the mark is the call's
        return words.rstrip() if words.strip() else ""

    def _bare(self) -> str:
        opening = self._held.lstrip()
        if self._begun or not (opening.startswith("{") or not opening):
            return self._held
        match = _BARE.match(opening)
        if match is not None:
            self.name = json.loads(match[1])
            self.found = self.name in self._names
            return "" if self.found else self._held
        return self._held if len(opening) > _LONGEST_OPENING else ""
