"""Cuts an answer into clauses while it is being written, so that speaking can start early. Pure.

The first clause is short, because the caller waits for it; later ones are whole sentences where they
can be, because speech is ahead by then and longer clauses sound better. Whether a full stop ends a
sentence shows only in the character after it ("3.5", "e.g."), so a cut falls before a white space.
Cuts depend on the text alone, never on how it was split into deltas, and nothing is lost: the clauses
joined are the text.
"""

_SENTENCE_ENDS = ".!?…"
_CLAUSE_ENDS = ",;:—–"
_WIDE_ENDS = "。！？；，、"  # Chinese and Japanese put no space after these
_CLOSERS = "\"'”’)]}*_"
_ABBREVIATIONS = (
    "mr mrs ms dr prof sr jr st vs etc e.g i.e a.m p.m approx dept est fig no inc ltd co mt gen"
)
# A first clause that ends on one of these sounds as if the line had dropped.
_WEAK = (
    "a an the of to in on at by for from with and or but nor is are was were be am as that than "
    "i you he she it we they my your his her its our their this these those if when because"
)
_ABBREVIATION_SET, _WEAK_SET = frozenset(_ABBREVIATIONS.split()), frozenset(_WEAK.split())
_FIRST_WORDS = 5
_FIRST_WORDS_MAX = 7
_SENTENCE_CHARS = 16  # a later clause is at least this long if it ends a sentence,
_CLAUSE_CHARS = 40  # this long if it does not,
_MAX_CHARS = 160  # and never longer than this


class ClauseCutter:
    """Text deltas in, clauses out."""

    def __init__(self) -> None:
        self._pending = ""  # written and not yet cut
        self._first = True

    def feed(self, text: str) -> list[str]:
        """The clauses that `text` completes, possibly none."""
        clauses = []
        for character in text:
            cut = self._cut_before(character)
            if cut:
                clauses.append(self._pending[:cut])
                self._pending = self._pending[cut:]
                self._first = False
            self._pending += character
        return clauses

    def flush(self) -> list[str]:
        """What is left at the end of the answer, if anything; ready for another answer afterwards."""
        rest = [self._pending] if self._pending else []
        self._pending = ""
        self._first = True
        return rest

    def _cut_before(self, following: str) -> int:
        """Length of the clause at the head of the pending text, seen that `following` comes; 0: none."""
        pending = self._pending
        if pending[-1:] and pending[-1] in _WIDE_ENDS and following not in _CLOSERS:
            return len(pending)
        if following.isspace() and pending.strip() and self._ends_here(following):
            return len(pending)
        if len(pending) >= _MAX_CHARS:
            blank = max(pending.rfind(" "), pending.rfind("\n"))
            return blank if blank > 0 and pending[:blank].strip() else len(pending)
        return 0

    def _ends_here(self, following: str) -> bool:
        pending = self._pending.strip()
        bare = pending.rstrip(_CLOSERS)
        sentence = following == "\n" or _ends_sentence(bare)
        clause = bare[-1:] != "" and bare[-1] in _CLAUSE_ENDS
        if not self._first:
            return (sentence and len(pending) >= _SENTENCE_CHARS) or (
                clause and len(pending) >= _CLAUSE_CHARS
            )
        words = pending.split()
        weak = words[-1].lower().strip(_CLOSERS) in _WEAK_SET
        enough = len(words) >= (_FIRST_WORDS_MAX if weak else _FIRST_WORDS)
        return sentence or (clause and len(words) > 1) or enough


def _ends_sentence(text: str) -> bool:
    if not text or text[-1] not in _SENTENCE_ENDS:
        return False
    if text[-1] != "." or text.endswith(".."):
        return True
    word = text.split()[-1].lstrip("\"'“‘([").removesuffix(".")
    initial = len(word) == 1 and word.isupper() and word != "I"
    ordinal = word.isdigit() and len(word) <= 2  # "1. First …"
    return not (word.lower() in _ABBREVIATION_SET or initial or ordinal)
