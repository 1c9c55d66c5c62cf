"""What of a run is worth a notification: tags of its flow runs, by which people filter and automations are triggered.

`final` is on the last point of a run. `regression` is on a point that is lower than the one before, beyond chance.
`skips-in-a-row` is on a skipped point if its suite's points at `IN_A_ROW` steps are skipped, this one and those before it that
have a record; of a step that was tried again the last attempt counts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from infra.errors import PinpointError
from infra.model import EvalPoint, EvalReport, SkippedPoint
from infra.records import find_before
from infra.store import Store
from infra.wording import difference_text

logger = logging.getLogger(__name__)
FINAL, REGRESSION, SKIPS = "final", "regression", "skips-in-a-row"
IN_A_ROW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Its tag, and what a person is told."""

    tag: str
    message: str


def tags_of(point: EvalPoint) -> tuple[str, ...]:
    """What is known before the point is measured."""
    return (FINAL,) if point.final else ()


def alarm_of(store: Store, record: EvalReport | SkippedPoint) -> Alarm | None:
    """What its record says; a store that can't be read gives no alarm about what lies before, and a line in the log."""
    if isinstance(record, EvalReport):
        return _regression(record)
    try:
        before = find_before(store, record.point, record.suite, IN_A_ROW - 1)
    except (PinpointError, ValueError) as error:
        logger.warning("%s: the points before it can't be read, nor skips in a row be seen: %s", record.point.name, error)
        return None
    skips = [one for one in before if isinstance(one, SkippedPoint)]
    if len(skips) < IN_A_ROW - 1:
        return None
    reasons = ", ".join(f"step {skip.point.step} {skip.reason}" for skip in (*reversed(skips), record))
    return Alarm(tag=SKIPS, message=f"skipped in a row: {reasons}")


def _regression(report: EvalReport) -> Alarm | None:
    lower = [
        f"{made.dataset} {difference_text(made.difference)}"
        for made in report.comparisons
        if made.against == "previous" and made.difference is not None and made.difference.verdict == "lower"
    ]
    return Alarm(tag=REGRESSION, message=f"lower than the point before: {', '.join(lower)}") if lower else None
