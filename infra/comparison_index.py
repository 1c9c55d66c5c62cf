"""Runs that were measured with one suite are found without reading all that the store has.

`comparisons/SUITE/RUN.json` has the points of one run, thinned, and is written anew with each of them. Whoever compares
lists that folder and reads the `MOST_RUNS` newest files, however many runs there are and however long they are. It is a
projection: a run that was measured before there was an index is not in it until its next point.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from pydantic import TypeAdapter, ValidationError

from infra.charts import MOST_SERIES
from infra.model import EvalReport, PointRecord, SkippedPoint
from infra.pictures import thinned
from infra.store import Store

logger = logging.getLogger(__name__)
Record = EvalReport | SkippedPoint
_RECORDS: TypeAdapter[list[EvalReport | SkippedPoint]] = TypeAdapter(list[PointRecord])
MOST_RUNS = 12
MOST_VALUES = 100  # of a run, about 40 kB of JSON
MOST_BYTES = 1_000_000  # what is larger is none of ours


def enter(store: Store, run: str, suite: str, records: Sequence[Record]) -> None:
    """Writes those of the run's points that were measured with the suite, in place of what was written of it before."""
    kept, _ = thinned([record for record in records if record.suite == suite], MOST_VALUES)
    store.write(f"comparisons/{suite}/{run}.json", _RECORDS.dump_json([_short(record) for record in kept]))


def entered(store: Store, suite: str) -> tuple[dict[str, list[Record]], int]:
    """The points of the runs that were entered last, the latest first, and how many more runs there are."""
    written = store.written(f"comparisons/{suite}")
    newest = sorted(written, key=lambda key: (-written[key], key))
    found = {}
    for key in newest[:MOST_RUNS]:
        try:
            found[key.rpartition("/")[2].removesuffix(".json")] = _read(store, key)
        except (FileNotFoundError, ValidationError, ValueError) as error:
            logger.warning("%s is left out of the comparison: %s", key, str(error).splitlines()[0])
    return found, max(0, len(newest) - MOST_RUNS)


def _read(store: Store, key: str) -> list[Record]:
    data = store.read_range(key, 0, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return _RECORDS.validate_json(data)


def _short(record: Record) -> Record:
    """Without what no comparison of runs shows."""
    if isinstance(record, SkippedPoint):
        return replace(record, message=record.message[:200])
    results = tuple(
        replace(result, pass_at_k={}, best_at_k={}, lengths=None, score_completed=None, outcomes={}, samples_location="")
        for result in record.results[:MOST_SERIES]
    )
    metrics = dict(islice(record.metrics.items(), MOST_SERIES))
    return replace(record, results=results, metrics=metrics, proofs=(), comparisons=(), phases={})
