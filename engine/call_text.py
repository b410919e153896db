"""Reads a function call while it is being decoded: `{"name": …, "arguments": {…}}`."""

import json
import re

_OPENING = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


class CallText:
    """Finds the name first, then the arguments as they come, and ends with the brace that closes them."""

    def __init__(self) -> None:
        self.name = ""  # empty until it is known
        self.arguments = ""  # their JSON text so far
        self.done = False  # the arguments are complete
        self._unread = ""  # before the arguments begin
        self._depth = 0  # of braces within the arguments
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> str:
        """The part of `text` that belongs to the arguments."""
        if not self.name:
            self._unread += text
            opening = _OPENING.match(self._unread)
            if opening is None:
                return ""
            self.name = json.loads(opening[1])
            text = self._unread[opening.end() :]
        if self.done:
            return ""
        for index, char in enumerate(text):
            if self._closes(char):
                self.done = True
                text = text[: index + 1]
                break
        self.arguments += text
        return text

    def _closes(self, char: str) -> bool:
        """Whether this character ends the arguments."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char == "{":
            self._depth += 1
        elif char == "}":
            self._depth -= 1
            return self._depth == 0
        return False
