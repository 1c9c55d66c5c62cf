"""Too many samples that nobody could grade, and the dataset says so instead of giving a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from infra.model import DatasetResult, SampleOutcome

FAILED = (SampleOutcome.GRADER_TIMEOUT, SampleOutcome.GRADER_ERROR, SampleOutcome.INFRA_ERROR)


def too_many_failed(outcomes: Mapping[str, int], max_failed_share: float) -> str | None:
    """Why the dataset has no score, with counts; None if it has one.

    An answer that is wrong, cut off or missing has not failed: it was the model's.
    """
    total = sum(outcomes.values())
    failed = {outcome: outcomes.get(outcome, 0) for outcome in FAILED}
    count = sum(failed.values())
    if count <= max_failed_share * total:
        return None
    kinds = ", ".join(f"{n} {outcome.value}" for outcome, n in failed.items() if n)
    allowed = f"max_failed_share {max_failed_share:g} allows"
    return f"{count} of {total} samples got no answer or no grade ({kinds}), more than {allowed}"


def with_score_only_if_graded(result: DatasetResult, max_failed_share: float) -> DatasetResult:
    """`result` without any score if too many failed. Its bounds and counts stay: they say what can be said."""
    reason = too_many_failed(result.outcomes, max_failed_share)
    if reason is None:
        return result
    return replace(result, score=None, score_completed=None, pass_at_k={}, best_at_k={}, no_score=reason)
