"""A run that is evaluated live in the real stack: its engines, what fills them, and what is asked of them at a point."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from prefect.blocks.system import Secret

from infra.model import DatasetSpec, EvalPoint, EvalReport, LiveRequest, Sampling, SkippedPoint, Suite
from infra.records import find
from infra.store import Store
from tests.engines.launching import RunningEngine
from tests.services.stack import RunningStack
from trainer_integration.live import LiveEvaluator, LiveSettings
from trainer_integration.pause_gate import Gate, PauseGate

SHORT = Sampling(temperature=0.0, max_new_tokens=8)


class LiveRun:
    def __init__(self, services: RunningStack, name: str, engines: list[RunningEngine], **settings: Any) -> None:
        self.services, self.run, self.engines = services, name, engines
        self.store = Store(services.file_url(f"store-{name}"))
        rows = services.home / f"{name}.jsonl"
        rows.write_text("".join(f'{{"prompt": "{i:02d}+01=", "answer": "{i + 1}"}}\n' for i in range(20)))
        self.dataset = DatasetSpec(name="rows", source=str(rows), sampling=SHORT)
        self.settings = settings

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(engine.base_url for engine in self.engines)

    @contextmanager
    def evaluator(self, gate: Gate, dataset: DatasetSpec | None = None, **changes: Any) -> Iterator[LiveEvaluator]:
        suite = Suite(name="suite", datasets=(dataset or self.dataset,))
        given = {"run": self.run, "suite": suite, "engines": self.urls, "deadline_s": 240.0, **self.settings, **changes}
        made = LiveEvaluator(LiveSettings(**given), self.services.settings(self.store.url), gate)
        try:
            yield made
        finally:
            made.close()

    def request(self, step: int, **changes: Any) -> LiveRequest:
        suite = Suite(name="suite", datasets=(self.dataset,))
        point = EvalPoint(run=self.run, step=step)
        given = {"point": point, "engines": self.urls, "suite": suite, "store_url": self.store.url, **self.settings, **changes}
        return LiveRequest(**given)

    def record(self, step: int) -> EvalReport | SkippedPoint | None:
        return find(self.store, EvalPoint(run=self.run, step=step), "suite")


class FillingProducer:
    """Fills an engine through a gate from several threads, without end; keeps every answer."""

    def __init__(self, gate: PauseGate, engine: RunningEngine, tokens: int = 24) -> None:
        self.gate, self.engine, self.tokens = gate, engine, tokens
        self.answers: list[dict[str, Any]] = []
        self.failures: list[BaseException] = []
        self.stopping = threading.Event()

    @contextmanager
    def running(self, workers: int = 4) -> Iterator[FillingProducer]:
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(workers))
            stack.callback(self.stopping.set)
            for number in range(workers):
                pool.submit(self._fill, number)
            yield self

    def _fill(self, number: int) -> None:
        while not self.stopping.is_set():
            try:
                with self.gate.submission():
                    self.answers.append(self.engine.generate(f"{number}+2=", tokens=self.tokens))
            except (AssertionError, OSError) as error:
                self.failures.append(error)
                return

    def finishes(self) -> set[str]:
        return {answer["meta_info"]["finish_reason"]["type"] for answer in self.answers}

    def versions(self) -> set[str]:
        return {span["version"] for answer in self.answers for span in answer["meta_info"]["weight_versions"]}


def save_secret(services: RunningStack, name: str, value: str) -> None:
    """As a user does in Prefect's UI."""
    with services.known():
        Secret(value=value).save(name, overwrite=True)


def update(engine: RunningEngine, folder: Path, version: str, mode: str = "retract") -> None:
    """As a trainer does it whose producer never stops; with `in_place` what the engine has computed is kept."""
    engine.post("/pause_generation", {"mode": mode}).raise_for_status()
    engine.update(folder, version, flush_cache=mode != "in_place").raise_for_status()
    engine.post("/continue_generation", {}).raise_for_status()
