"""A training loop that dispatches points to the real stack, while things are killed beside it."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.model import DatasetSpec, EvalPoint, EvalReport, FleetSpec, Sampling, SkippedPoint, Suite
from infra.records import find
from infra.store import Store
from tests.end_to_end.points import wait_until
from tests.services.stack import RunningStack
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.export import HuggingFaceExporter
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

EVERY = 5
STEP_S = 0.02


class Training:
    """Due steps are multiples of `EVERY`; each point takes some seconds of generation on two engines."""

    def __init__(self, services: RunningStack, run: str, fleet: FleetSpec, folder: Path, *, samples: int = 24) -> None:
        self.services, self.run, self.fleet = services, run, fleet
        rows = folder / "rows.jsonl"
        rows.write_text("".join(f'{{"prompt": "{i:02d}+01=", "answer": "{i + 1}"}}\n' for i in range(20)))
        sampling = Sampling(max_new_tokens=100, temperature=1.0)
        halves = [DatasetSpec(name=n, source=str(rows), sampling=sampling, samples_per_prompt=samples // 2) for n in ("a", "b")]
        self.suite = Suite(name="suite", datasets=tuple(halves))
        self.store = Store(services.file_url(f"store-{run}"))
        settings = services.settings(self.store.url).model_copy(update={"fleet": fleet})
        dispatch = DispatchSettings(run=run, suite=self.suite, every=EVERY, max_in_flight=4)
        exporter = HuggingFaceExporter(build_model(3, hidden=32, layers=2), build_tokenizer())
        self.evaluation = EvalDispatcher(dispatch, settings, exporter)
        self.step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.evaluation.close()

    def train_on(self, steps: int = EVERY) -> int:
        """Whatever happens beside it, each step is taken, and none raises; gives the step it is then at."""
        for _ in range(steps):
            self.step += 1
            time.sleep(STEP_S)
            self.evaluation.on_step(self.step)
        return self.step

    def generating(self) -> int:
        """Trains on to the next due step, and on a little, until a dataset of that point has its first finished samples."""
        step = self.train_on()
        point = f"runs/{self.run}/points/{EvalPoint(run=self.run, step=step).key}"
        wait_until(lambda: any("/log/" in key for key in self.store.list(point)), 240)
        return step

    def record(self, step: int) -> EvalReport | SkippedPoint:
        point = EvalPoint(run=self.run, step=step)
        wait_until(lambda: find(self.store, point, "suite") is not None, 300)
        record = find(self.store, point, "suite")
        assert record is not None
        return record

    def report(self, step: int) -> EvalReport:
        """Asserts that the point has one, of all samples and no others."""
        record = self.record(step)
        assert isinstance(record, EvalReport), record
        for result, spec in zip(record.results, self.suite.datasets, strict=True):
            assert (result.coverage, result.n_samples) == (1.0, 20 * spec.samples_per_prompt)
            assert (result.mixed_version_ratio, result.weight_version_mean) == (0.0, step)
        return record
