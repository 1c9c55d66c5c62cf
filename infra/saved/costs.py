"""What an evaluation would cost, as far as that is known before it runs: what is asked, what is read, how long it took."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from infra.datasets import load_problems
from infra.errors import ConfigError, SnapshotError
from infra.model import EvalReport, Suite
from infra.records import history
from infra.saved.survey import Found
from infra.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one checkpoint. `seconds` is the mean of what the run's points took under this very suite, None if there were none.

    `most_tokens` are completion tokens if every response were as long as it may be.
    """

    requests: int
    most_tokens: int
    n_bytes: int
    seconds: float | None


def costs(store: Store, found: Sequence[Found]) -> dict[str, Cost]:
    """By checkpoint, of those that have a suite to be asked."""
    sizes: dict[str, tuple[int, int]] = {}
    past = {run: _reports(store, run) for run in {one.run for one in found}}
    made = {}
    for one in found:
        if one.suite is None:
            continue
        if one.suite_digest not in sizes:
            sizes[one.suite_digest] = _asked(one.suite)
        requests, tokens = sizes[one.suite_digest]
        if not one.standing.files:  # it is known to be invalid: it is skipped before anything is asked
            made[one.saved.location] = Cost(requests=0, most_tokens=0, n_bytes=0, seconds=None)
            continue
        took = [report.duration_seconds for report in past[one.run] if report.suite_digest == one.suite_digest]
        seconds = mean(took) if took else None
        made[one.saved.location] = Cost(requests=requests, most_tokens=tokens, n_bytes=_size(one), seconds=seconds)
    return made


def _reports(store: Store, run: str) -> list[EvalReport]:
    try:
        return [record for record in history(store, run) if isinstance(record, EvalReport)]
    except (ValueError, ConfigError) as error:  # one record is damaged, or of a newer Pinpoint
        logger.warning("how long earlier points of %s took is not known: %s", run, error)
        return []


def _size(found: Found) -> int:
    try:
        entries = found.saved.reader.entries()
    except (SnapshotError, OSError):  # it was deleted meanwhile
        return 0
    return sum(entry.size for name, entry in entries.items() if name in found.standing.files)


def _asked(suite: Suite) -> tuple[int, int]:
    counts = [(len(load_problems(spec)) * spec.samples_per_prompt, spec.sampling.max_new_tokens) for spec in suite.datasets]
    return sum(count for count, _ in counts), sum(count * tokens for count, tokens in counts)
