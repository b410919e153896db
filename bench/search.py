"""Finds the largest load that still holds, with few tries. Pure."""

from collections.abc import Callable


def most_held(
    holds: Callable[[int], bool],
    start: int,
    *,
    ceiling: int,
    precision: float = 0.1,
    stride: float = 1.4,
) -> int:
    """The largest n found for which `holds(n)`; 0 if none above `start / 16` does.

    Grows or shrinks from `start` by `stride` a try, then bisects until the smallest n known to fail is within
    `precision` (a share) of the largest known to hold. Each try that fails is made once more,
    because a busy machine can fail any of them; one that holds is believed.
    """

    def tried(n: int) -> bool:
        return holds(n) or holds(n)

    held, failed = 0, 0
    n = start
    while held == 0 and n >= max(1, start // 16):
        if tried(n):
            held = n
        else:
            failed, n = n, min(n - 1, int(n / stride))
    if held == 0:
        return 0
    while not failed and held < ceiling:
        n = min(ceiling, int(held * stride) + 1)
        if tried(n):
            held = n
        else:
            failed = n
    while failed and failed - held > max(1.0, precision * held):
        n = (held + failed) // 2
        if tried(n):
            held = n
        else:
            failed = n
    return held
