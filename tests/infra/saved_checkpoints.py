"""A root of small checkpoints, and a Prefect of which only that it was asked is kept: flow runs are executed by the test."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra import ledger
from infra.datasets import dataset_digest, read_problems
from infra.model import DatasetSpec, Estimate, EvalReport, EvalRequest, FleetSpec, Reevaluation, SkippedPoint, Suite
from infra.records import commit
from infra.saved.round import Done, run_round
from infra.saved.survey import Survey
from infra.store import Store
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import REPORT, RESULT, SKIPPED, jsonl

FLEET = FleetSpec(name="test")


class Root:
    """Checkpoints of steps 1, 2, 3, ... and a store; `sent` are the requests that flow runs were made of."""

    def __init__(self, folder: Path, steps: int = 3) -> None:
        self.folder, self.store = folder, Store((folder / "store").as_uri())
        self.saved = folder / "run" / "checkpoints"
        for step in range(1, steps + 1):
            make_checkpoint(self.saved / f"step_{step}", seed=step)
        self.sent: list[EvalRequest] = []
        self.ended: set[str] = set()
        self.lock = threading.Lock()
        self.suite = self.suite_of(sums="1+1=")

    def suite_of(self, **prompts: str) -> Suite:
        """One dataset of one row for each prompt; equal prompts make equal datasets."""
        self.folder.mkdir(exist_ok=True)
        rows = {
            name: jsonl(self.folder / f"{name}.jsonl", f'{{"prompt": "{text}", "answer": "2"}}')
            for name, text in prompts.items()
        }
        return Suite(name="nightly", datasets=tuple(DatasetSpec(name=name, source=path) for name, path in rows.items()))

    def send(self, request: EvalRequest) -> str:
        with self.lock:
            self.sent.append(request)
            return f"flow-{len(self.sent)}"

    def asked(self, **changes: Any) -> Reevaluation:
        values = {"roots": (str(self.saved),), "care": {"settle_s": 0, "at_once": 100}, **changes}
        return Reevaluation.model_validate(values)

    def round(self, suite: Suite | None = None, *, fleet: FleetSpec = FLEET, only_look: bool = False, **changes: Any) -> Done:
        asked = self.asked(**changes)
        survey = Survey.of(self.store, asked, suite or self.suite, fleet, self.ended.__contains__)
        return run_round(survey, fleet, self.send, limit=asked.limit, only_look=only_look)

    def steps(self, suite: Suite | None = None, **changes: Any) -> list[int]:
        """What a trigger submits."""
        return [one.saved.step for one in self.round(suite, **changes).submitted]

    def states(self, **changes: Any) -> dict[int, str]:
        return {one.saved.step: one.state for one in self.round(only_look=True, **changes).found}

    def report(self, request: EvalRequest, score: float | None = 0.5) -> EvalReport | SkippedPoint:
        """What the flow run does when all is well, or if `score` is None nobody could be asked for a grade."""
        assert begins(self.store, request)
        return commit(self.store, self.measured(request, score))

    def measured(self, request: EvalRequest, score: float | None = 0.5) -> EvalReport:
        mean = None if score is None else Estimate(mean=score, stderr=0.1, low=0.0, high=1.0, n=1)
        no_score = "the judge was away" if mean is None else ""
        results = tuple(
            replace(RESULT, dataset=spec.name, score=mean, no_score=no_score, digest=dataset_digest(spec, read_problems(spec)))
            for spec in request.suite.datasets
        )
        return replace(REPORT, point=request.point, suite=request.suite.name, results=results)

    def skip(self, request: EvalRequest, reason: str = "unhealthy") -> None:
        assert begins(self.store, request)
        commit(self.store, replace(SKIPPED, point=request.point, suite=request.suite.name, reason=reason, message="as it were"))

    def evaluate_all(self, *, score: float | None = 0.5) -> None:
        """Executes what was submitted."""
        for request in self.sent:
            self.report(request, score)
        self.sent.clear()


def begins(store: Store, request: EvalRequest, execution: str = "flow-1") -> bool:
    """What a flow run does first."""
    assert request.ledger is not None
    return ledger.begin(store, request.ledger, request.point, request.suite.name, execution)
