"""Which words of an answer had been spoken by which moment of its audio.

Text reaches us just ahead of the audio that speaks it, so a mark (audio so far, text so far) set when text arrives
says where that text begins:

    audio   [0 ────────── 900) [900 ─────── 2100) …
    text    "Hello there,"     " how are you?"

A cut at 900 ms keeps exactly "Hello there,". Inside a piece the audio is taken to be spoken evenly, and only whole
words are kept.
"""

from protocol.audio_format import pcm_ms


class SpokenText:
    """The text of one answer and where its audio speaks it. Holds no audio."""

    __slots__ = ("_ends", "_heard_ms", "_pcm_bytes", "_pieces", "_rate", "_starts")

    def __init__(self, rate: int) -> None:
        self._rate = rate  # Hz of the pcm16 counted here
        self._pcm_bytes = 0  # audio so far
        self._pieces: list[str] = []  # text as it came
        self._starts: list[
            int
        ] = []  # ms of audio at which a stretch of text begins, strictly rising
        self._ends: list[int] = []  # characters of text by the end of that stretch
        self._heard_ms: int | None = None  # the caller heard no more than this; None: all of it

    @property
    def audio_ms(self) -> int:
        """Length of the answer, or of what is left of it after a cut."""
        spoken = pcm_ms(self._pcm_bytes, self._rate)
        return spoken if self._heard_ms is None else min(spoken, self._heard_ms)

    @property
    def text(self) -> str:
        """Everything written, heard or not."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def write(self, text: str) -> None:
        """More text; the audio that follows speaks it."""
        start = pcm_ms(self._pcm_bytes, self._rate)
        end = (self._ends[-1] if self._ends else 0) + len(text)
        self._pieces.append(text)
        if self._starts and self._starts[-1] == start:
            self._ends[-1] = end
        else:
            self._starts.append(start)
            self._ends.append(end)

    def speak(self, byte_count: int) -> None:
        """More audio, as bytes of pcm16."""
        self._pcm_bytes += byte_count

    def cut(self, heard_ms: int) -> int:
        """Keep only what is spoken in the first `heard_ms`; returns the length kept (never more than there is)."""
        self._heard_ms = max(0, min(heard_ms, self.audio_ms))
        return self._heard_ms

    def drop_unspoken(self) -> None:
        """Forget text whose audio never came: the answer was cut off."""
        self.cut(self.audio_ms)

    def heard(self) -> str:
        """The text whose audio the caller heard."""
        if self._heard_ms is None:
            return self.text
        spoken_ms = pcm_ms(self._pcm_bytes, self._rate)
        begin = 0
        for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            stop = self._starts[index + 1] if index + 1 < len(self._starts) else spoken_ms
            if self._heard_ms < stop or stop == start:
                heard_share = (self._heard_ms - start) / max(1, stop - start)
                return self.text[:begin] + _whole_words(self.text[begin:end], heard_share)
            begin = end
        return self.text


def _whole_words(text: str, share: float) -> str:
    """The words that end within the first `share` (0–1) of `text`."""
    limit = int(len(text) * share)
    if limit <= 0:
        return ""
    if limit >= len(text) or text[limit].isspace():
        return text[:limit].rstrip()
    head = text[:limit]
    boundary = max((i for i, char in enumerate(head) if char.isspace()), default=0)
    return head[:boundary].rstrip()
