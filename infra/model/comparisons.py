"""What can be said between two points: a difference on common prompts with its interval, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.model.points import EvalPoint

Verdict = Literal["higher", "lower", "not told apart", "can't be told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Mean over `n` common prompts of this point's score minus the other's, in [-1, 1].

    [`low`, `high`] is its 95% interval: Tango's (`method` "tango") with McNemar's exact `p_value` where every prompt is
    right or wrong as a whole, else Student's t. Both are None where the prompts say nothing of the spread: `note` says why.
    `gained` and `lost` count the prompts that rose and fell. `minimum_detectable` is the true difference that so many
    prompts, with such a spread, would show in 80% of evaluations.
    """

    mean: float
    stderr: float
    n: int
    gained: int
    lost: int
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    method: Literal["tango", "t", ""] = ""
    minimum_detectable: float | None = None
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """A difference counts only where the interval excludes zero and the test agrees (p < 0.05)."""
        if self.low is None or self.high is None or self.p_value is None:
            return "can't be told"
        if self.low <= 0 <= self.high or self.p_value >= 0.05:
            return "not told apart"
        return "higher" if self.mean > 0 else "lower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One dataset of a point beside the same dataset of `other`; without a `difference`, `reason` says why there is none.

    `unpaired` counts prompts that have a grade at one of both points only; they are left out.
    """

    dataset: str
    against: Literal["previous", "baseline", "asked"]
    other: EvalPoint | None
    difference: PairedDifference | None = None
    unpaired: int = 0
    reason: str = ""
