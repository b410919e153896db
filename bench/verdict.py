"""Was a turn good enough? The demo's pass mark, pure."""

import numpy as np

from bench.scoring import rms_dbfs, word_error_rate
from bench.turns import Turn

MAX_HUMAN_WER = 0.15
MAX_ANSWER_WER = 0.25
MIN_DBFS = -45.0
MAX_FIRST_AUDIO_S = 5.0  # after the end of the turn


def loudness(turn: Turn) -> float:
    """RMS of the answer in dBFS."""
    return rms_dbfs(np.frombuffer(bytes(turn.pcm), "<i2"))


def faults(turn: Turn, reheard: str) -> list[str]:
    """Why this turn fails the demo, one line each; `reheard` is the answer's audio transcribed."""
    found = list(turn.problems)
    wer = word_error_rate(turn.said.words, turn.heard)
    if turn.said.human and wer > MAX_HUMAN_WER:
        found.append(
            f"misheard: word error rate {wer:.2f} > {MAX_HUMAN_WER}; heard {turn.heard!r}, "
            f"said {turn.said.words!r}"
        )
    if not turn.pcm or not turn.answer.strip() or turn.status not in ("completed", "incomplete"):
        found.append(f"no spoken answer (status {turn.status or 'none'!r})")
        return found
    if (level := loudness(turn)) <= MIN_DBFS:
        found.append(f"the answer is not audible: {level:.1f} dBFS <= {MIN_DBFS:.0f}")
    elif (wer := word_error_rate(turn.answer, reheard)) > MAX_ANSWER_WER:
        found.append(
            f"the answer is not intelligible: word error rate {wer:.2f} > {MAX_ANSWER_WER}; "
            f"sent {turn.answer!r}, heard again {reheard!r}"
        )
    waited = turn.decision_to_audio_s
    if waited is None or waited > MAX_FIRST_AUDIO_S:
        shown = "never" if waited is None else f"{waited:.1f} s"
        found.append(f"late: first audio {shown} after the end of the turn")
    return found
