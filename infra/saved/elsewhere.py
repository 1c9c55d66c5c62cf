"""What points that no trigger asked for have measured is noted, so that no trigger pays for it again.

`measured/CHECKPOINT-ENGINES/UNIT.json` is of one dataset, or of all that a black box was given, by its digest.
"""

from __future__ import annotations

import json
import logging

from infra.errors import PinpointError
from infra.model import EvalReport, EvalRequest, LedgerKey
from infra.records import record_key
from infra.saved.identity import engine_digest
from infra.store import Store

logger = logging.getLogger(__name__)
FOLDER = "measured"
Scores = dict[str, float]  # by dataset or metric


def note(store: Store, request: EvalRequest, report: EvalReport) -> None:
    """Never raises: what is not noted is measured again at worst. What a trigger asked for is in the ledger."""
    if request.ledger is not None or report.snapshot_digest is None:
        return
    found = {result.digest: {result.dataset: result.score.mean} for result in report.results if result.score}
    if request.black_box is not None:
        found = {report.suite_digest: report.metrics}
    place = LedgerKey.of(report.snapshot_digest, engine_digest(request.fleet, request.black_box), "").place
    record = store.url_of(record_key(report.point, report.suite))
    try:
        for unit, scores in found.items():
            store.write(f"{FOLDER}/{place}/{unit}.json", json.dumps({"record": record, "scores": scores}).encode())
    except (PinpointError, OSError) as error:
        logger.warning("a re-evaluation will not know what %s has measured: %s", report.point.name, error)


def noted(store: Store, place: str) -> dict[str, Scores]:
    """By the digest of what was measured. Raises StoreError; what can't be read is not there."""
    found: dict[str, Scores] = {}
    for key in store.list(f"{FOLDER}/{place}"):
        try:
            scores = json.loads(store.read(key))["scores"]
            found[key.rpartition("/")[2].removesuffix(".json")] = {str(name): float(value) for name, value in scores.items()}
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("%s can't be read: %s", key, error)
    return found
