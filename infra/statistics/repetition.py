"""A response that ends in a loop is seen without a model: what repeats itself compresses far better than any text does.

The rule of slime and Miles (`has_repetition` in https://github.com/THUDM/slime/blob/main/slime/utils/metric_utils.py): the
last 10,000 characters compress to less than a tenth. Theirs looks at responses longer than that only; here shorter ones
count too, by the same measure.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from infra.model import Sample, SampleOutcome

TAIL_CHARACTERS = 10_000
RATIO = 10.0


def ends_in_a_loop(text: str) -> bool:
    tail = text[-TAIL_CHARACTERS:].encode(errors="surrogatepass")
    return len(tail) > RATIO * len(zlib.compress(tail, 9))


def repetition_ratio(samples: Sequence[Sample]) -> float | None:
    """Share of the responses that came which end in a loop; None without any."""
    came = [sample for sample in samples if sample.outcome is not SampleOutcome.INFRA_ERROR]
    return sum(ends_in_a_loop(sample.response) for sample in came) / len(came) if came else None
