"""Numbers as people read them: none without its interval, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping

from infra.model import Comparison, DatasetResult, Estimate, PairedDifference

NONE = "–"


def score_text(result: DatasetResult) -> str:
    """Mean with its 95% interval, e.g. `0.734 [0.67, 0.79]`."""
    if result.score is None:
        return f"no score: {result.no_score}" if result.no_score else "no score"
    graded = "" if result.coverage == 1 else f" ({result.coverage:.0%} graded)"
    return f"{estimate_text(result.score)}{graded}"


def estimate_text(estimate: Estimate | None) -> str:
    return f"{estimate.mean:.3f} [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate else NONE


def passes_text(passes: Mapping[int, Estimate]) -> str:
    """E.g. `@1 0.31, @4 0.62`."""
    return ", ".join(f"@{k} {passed.mean:.3f}" for k, passed in sorted(passes.items())) or NONE


def lengths_text(result: DatasetResult) -> str:
    """Median, 9 of 10, 99 of 100 and the longest, in tokens."""
    known = result.lengths
    return f"{known.p50:.0f} / {known.p90:.0f} / {known.p99:.0f} / {known.longest}" if known else NONE


def share_text(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def difference_text(difference: PairedDifference) -> str:
    """E.g. `+0.045 [+0.012, +0.078]`."""
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.3f} (no interval)"
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def comparison_text(comparison: Comparison | None) -> str:
    """One cell: the difference and what it shows, or a dash."""
    if comparison is None or comparison.difference is None:
        return NONE
    return f"{difference_text(comparison.difference)} {comparison.difference.verdict}"


def comparison_row(comparison: Comparison) -> dict[str, str]:
    """One row: who is compared with whom, how far apart they are, and how far apart they would have to be."""
    other = f"{comparison.against}, {place_text(comparison)}" if comparison.against != "asked" else place_text(comparison)
    row = {"dataset": comparison.dataset, "against": other}
    found = comparison.difference
    if found is None:
        return row | dict.fromkeys(("difference [95% interval]", "shows", "p", "prompts", "rose / fell", "detectable"), NONE)
    p = f"{found.p_value:.2g} {'McNemar' if found.method == 'tango' else 't'}" if found.p_value is not None else NONE
    return row | {
        "difference [95% interval]": difference_text(found),
        "shows": found.verdict,
        "p": p,
        "prompts": str(found.n),
        "rose / fell": f"{found.gained} / {found.lost}",
        "detectable": f"{found.minimum_detectable:.3f}" if found.minimum_detectable is not None else NONE,
    }


def comparison_notes(comparison: Comparison) -> list[str]:
    """What a reader of the row has to know: why there is no number, or no interval, and what was left out."""
    said = [comparison.reason, comparison.difference.note if comparison.difference else ""]
    if comparison.unpaired:
        said.append(f"{comparison.unpaired} prompts that only one of both points has a grade for are left out")
    return [f"{comparison.dataset}, {comparison.against}: {text}" for text in said if text]


def place_text(comparison: Comparison) -> str:
    if comparison.other is None:
        return NONE
    attempt = f" (attempt {comparison.other.attempt})" if comparison.other.attempt else ""
    return f"step {comparison.other.step}{attempt}"
