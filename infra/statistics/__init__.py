"""A score never stands alone: it carries its interval, its coverage, and the bounds that what is missing allows.

The unit of sampling is the prompt: samples of one prompt are averaged first, so that the standard error is clustered by
prompt (Miller, "Adding Error Bars to Evals", arXiv:2411.00640, section 2.2). Formulas, sources and limits of every number:
docs/statistics.md.
"""

from infra.statistics.comparison import chance_note, paired_difference
from infra.statistics.intervals import CONFIDENCE, estimate
from infra.statistics.lengths import lengths
from infra.statistics.passes import best_at, best_at_k, pass_at, pass_at_k
from infra.statistics.power import minimum_detectable
from infra.statistics.repetition import ends_in_a_loop, repetition_ratio
from infra.statistics.scores import (
    count_outcomes,
    coverage_and_bounds,
    mean_by_prompt,
    prompt_means,
    score_completed,
    truncated_ratio,
    version_metrics,
)
from infra.statistics.too_long import prompts_too_long

__all__ = [
    "CONFIDENCE",
    "best_at",
    "best_at_k",
    "chance_note",
    "count_outcomes",
    "coverage_and_bounds",
    "ends_in_a_loop",
    "estimate",
    "lengths",
    "mean_by_prompt",
    "minimum_detectable",
    "paired_difference",
    "pass_at",
    "pass_at_k",
    "prompt_means",
    "prompts_too_long",
    "repetition_ratio",
    "score_completed",
    "truncated_ratio",
    "version_metrics",
]
