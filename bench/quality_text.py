"""The long English text that quality is measured on."""

import re
from collections.abc import Iterator
from pathlib import Path

TEXT = Path(__file__).resolve().parent / "texts" / "genesis-exodus.txt"

_CHAPTER = re.compile(r"^[A-Z][a-z]+ \d+$")
_VERSE = re.compile(r"^ {0,2}\d+ ")


def prose(printed: str) -> Iterator[str]:
    """The words of each chapter as one running paragraph, without headings and verse numbers."""
    chapter: list[str] = []
    for line in printed.splitlines():
        if _CHAPTER.match(line):
            if chapter:
                yield " ".join(chapter)
            chapter = []
        elif line.strip():
            chapter.append(_VERSE.sub("", line).strip())
    if chapter:
        yield " ".join(chapter)


def long_text() -> str:
    """The committed text, a paragraph per chapter."""
    return "\n\n".join(prose(TEXT.read_text(encoding="utf-8")))
