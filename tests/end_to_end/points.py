"""Points of a run as a trainer submits them, from staged copies of one model, to the real stack."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.model import DatasetSpec, EvalPoint, EvalReport, EvalRequest, Sampling, SkippedPoint, SnapshotSource, Suite
from infra.records import find
from infra.store import Store
from tests.services.stack import FLEET, RunningStack
from tests.services.waiting import patiently, until
from trainer_integration.outbox import DEPLOYMENT, Delivery
from trainer_integration.prefect_api import PrefectApi


class Points:
    """Submits points as a trainer does, from staged copies of one model."""

    def __init__(self, services: RunningStack, model: Path, name: str, store_url: str | None = None) -> None:
        self.services, self.model = services, model
        self.store = Store(store_url or services.file_url(f"store-{name}"))
        self.staging = services.home / "staging" / "staged" / name
        self.run = name
        rows = services.home / f"{name}.jsonl"
        rows.write_text("".join(f'{{"prompt": "{i:02d}+01=", "answer": "{i + 1}"}}\n' for i in range(40)))
        self.dataset = DatasetSpec(name="rows", source=str(rows), sampling=Sampling(max_new_tokens=8))

    def request(self, step: int, *, dataset: DatasetSpec | None = None, **changes: Any) -> EvalRequest:
        folder = self.staging / str(step)
        shutil.copytree(self.model, folder)
        return EvalRequest(
            point=EvalPoint(run=self.run, step=step),
            source=SnapshotSource(path=str(folder), staged=True),
            suite=Suite(name="suite", datasets=(dataset or self.dataset,)),
            fleet=FLEET,
            store_url=self.store.url,
            **changes,
        )

    def submit(self, request: EvalRequest) -> str:
        api = PrefectApi(self.services.stack.prefect_api_url)
        return patiently(lambda: api.create_flow_run(Delivery.of(request, DEPLOYMENT)))

    def record(self, step: int, timeout_s: float = 240) -> EvalReport | SkippedPoint:
        point = EvalPoint(run=self.run, step=step)
        wait_until(lambda: find(self.store, point, "suite") is not None, timeout_s)
        record = find(self.store, point, "suite")
        assert record is not None
        return record

    def nothing_left(self) -> bool:
        staged = [path for path in self.staging.rglob("*") if path.is_file()]
        return not staged and self.store.list("snapshots") == {}


def run_name(request: pytest.FixtureRequest) -> str:
    """Of the test, and of no other test."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    return f"{name[:40].strip('-')}-{uuid.uuid4().hex[:4]}"


def wait_until(holds: Callable[[], bool], timeout_s: float = 300) -> None:
    until(holds, timeout_s, every_s=0.1)


def state_of(services: RunningStack, run: str) -> dict[str, Any]:
    [flow_run] = services.flow_runs(run)
    return dict(flow_run)


def has_ended(services: RunningStack, run: str) -> bool:
    return state_of(services, run)["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
