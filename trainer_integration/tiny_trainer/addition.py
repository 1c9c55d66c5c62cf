"""Two-digit addition: every question there is, a split of them that repeats with its seed, and one rule for a right answer.

A question is `"12+34="`, both numbers zero padded; the model learns to answer `"046"` and stop, where a grader that reads
`^0*(\\d+)` finds `46`. There is no torch here: an evaluation dataset is built from this module alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

Pair: TypeAlias = tuple[int, int]

ANSWER_DIGITS = 3
_NUMBER = re.compile(r"0*(\d+)", re.ASCII)


class Split(NamedTuple):
    """`train` and `held_out` share no pair; both are in an order drawn with the seed."""

    train: tuple[Pair, ...]
    held_out: tuple[Pair, ...]


def all_pairs() -> list[Pair]:
    """The 10,000 pairs from (0, 0) to (99, 99), in order."""
    return [(left, right) for left in range(100) for right in range(100)]


def split(seed: int, held_out: int = 1000, excluded: Iterable[Pair] = ()) -> Split:
    """The held-out pairs depend on the seed alone; `excluded` pairs, of another evaluation set say, leave the training part."""
    if not 0 <= held_out <= 10_000:
        raise ValueError(f"held_out is {held_out}: there are 10,000 pairs, so it must be from 0 to 10000")
    pairs = all_pairs()
    random.Random(seed).shuffle(pairs)
    unwanted = frozenset(excluded)
    train = tuple(pair for pair in pairs[held_out:] if pair not in unwanted)
    return Split(train=train, held_out=tuple(pairs[:held_out]))


def question(pair: Pair) -> str:
    """(7, 12) -> `"07+12="`."""
    left, right = pair
    return f"{left:02d}+{right:02d}="


def answer(pair: Pair) -> str:
    """(7, 12) -> `"019"`: what the warm-up teaches; any number of leading zeros is right."""
    return f"{sum(pair):0{ANSWER_DIGITS}d}"


def reward(pair: Pair, text: str) -> float:
    """1.0 when the whole of `text` is the sum of the pair, leading zeros allowed; else 0.0."""
    number = _NUMBER.fullmatch(text)
    return float(number is not None and int(number[1]) == sum(pair))
