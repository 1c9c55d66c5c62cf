"""A curve in one line of text: a block a point, a mark where a point has no number."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "×"
LEFT_OUT = "…"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The newest `width` places, from the lowest to the highest value among them; None is a gap."""
    shown = list(values) if len(values) <= width else list(values)[len(values) - max(1, width - 1) :]
    known = [value for value in shown if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    blocks = "".join(GAP if value is None else _block(value, low, high) for value in shown)
    return blocks if len(shown) == len(values) else LEFT_OUT + blocks


def _block(value: float, low: float, high: float) -> str:
    """Values that are all alike stand in the middle."""
    if high <= low:
        return BLOCKS[len(BLOCKS) // 2]
    if math.isinf(high - low):  # more than a float can be: by halves
        value, low, high = value / 2, low / 2, high / 2
    return BLOCKS[min(len(BLOCKS) - 1, int((value - low) / (high - low) * len(BLOCKS)))]
