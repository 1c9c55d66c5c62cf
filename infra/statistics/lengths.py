"""How long responses are, from their quantiles: a mean hides the few that run to the limit."""

from __future__ import annotations

from collections.abc import Sequence

from infra.model import Lengths, Sample, SampleOutcome

QUANTILES = (0.1, 0.5, 0.9, 0.99)


def lengths(samples: Sequence[Sample]) -> Lengths | None:
    """Of the responses that came; None without any.

    Truncated ones count as long as they got, so that quantiles at the limit are lower bounds.
    """
    import numpy as np

    tokens = [sample.completion_tokens for sample in samples if sample.outcome is not SampleOutcome.INFRA_ERROR]
    if not tokens:
        return None
    p10, p50, p90, p99 = np.quantile(tokens, QUANTILES).tolist()  # interpolated linearly
    return Lengths(mean=sum(tokens) / len(tokens), p10=p10, p50=p50, p90=p90, p99=p99, longest=max(tokens), n=len(tokens))
