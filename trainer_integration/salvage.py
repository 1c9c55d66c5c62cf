"""A file of the outbox that is no delivery is not lost silently: its point, if it can be made out, is recorded as crashed."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from infra.errors import ConfigError
from infra.model import EvalPoint, SkippedPoint, SkipReason
from infra.records import now

UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
MESSAGE = "what the trainer wrote for Prefect can't be read: {name}"
_POINT = TypeAdapter(EvalPoint)


def of_newer_version(error: ValidationError | ConfigError) -> bool:
    """Whether all that is wrong with a record are fields that this version does not know."""
    return isinstance(error, ValidationError) and all(each["type"] in UNKNOWN for each in error.errors())


def skip_in(content: bytes, name: str, deployment: str) -> dict[str, Any] | None:
    """The fields of a delivery that skips the point which `content`, found as `name`, is about; None if it says of none."""
    try:
        record = json.loads(content)
        request = record["parameters"]["request"]
        point, suite = _POINT.validate_python(request["point"]), str(request["suite"]["name"])
        store_url = str(record.get("store_url") or request["store_url"])
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError):
        return None
    message = MESSAGE.format(name=name)
    skip = SkippedPoint(
        point=point, suite=suite, reason=SkipReason.CRASHED.value, message=message, export_time_seconds=0.0, finished_at=now()
    )
    return {
        "deployment": str(record.get("deployment") or deployment),
        "idempotency_key": str(record.get("idempotency_key") or f"evaluate/{point.run}/{point.key}/{suite}/{name}"),
        "name": point.name,
        "tags": (f"run:{point.run}", f"step:{point.step}", f"suite:{suite}", f"skipped:{skip.reason}"),
        "parameters": {"request": request},
        "skip": skip,
        "store_url": store_url,
    }
