"""`engine` is any server of the protocol, reset before each test; another one joins by its entry in LAUNCHERS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.launching import RunningEngine, embedded_engine, wait_until
from tests.fakes.engine import FakeEngine
from tests.sglang.launching import sglang_engine
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

CONTEXT_LENGTH = 8192

LAUNCHERS: dict[str, Callable[[Path], AbstractContextManager[RunningEngine]]] = {
    "embedded": embedded_engine,
    "sglang": sglang_engine,
}
MARKS = {"sglang": [pytest.mark.sglang, pytest.mark.slow]}


@contextmanager
def fake_engine(_: Path) -> Iterator[RunningEngine]:
    """Speaks as much of the protocol as our client does, with checksums like SGLang's."""
    with FakeEngine("key") as fake:
        fake.says_algorithm = False
        yield RunningEngine(fake.base_url, api_key="key")


def seeded_model(seed: int) -> Any:
    """Every tensor differs between two seeds, the norms too, so that one left behind by an update shows."""
    model = build_model(seed, hidden=32, layers=2).eval()
    # Long enough that a test can act on a request while it runs.
    model.config.max_position_embeddings = CONTEXT_LENGTH
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=random)
    return model


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Complete checkpoints of one architecture; another seed is other weights."""

    root: Path

    def make(self, name: str, seed: int, *, dtype: torch.dtype = torch.float32, shard_size: str = "1GB") -> Path:
        folder = self.root / name
        if folder.exists():
            return folder
        model = seeded_model(seed).to(dtype)
        model.save_pretrained(folder, max_shard_size=shard_size)
        build_tokenizer().save_pretrained(folder)
        return folder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def first(checkpoints: Checkpoints) -> Path:
    return checkpoints.make("first", 1)


@pytest.fixture(scope="session")
def second(checkpoints: Checkpoints) -> Path:
    return checkpoints.make("second", 2)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of an engine runs on all, unless its module names the ENGINES that it is about."""
    if "started_engine" in metafunc.fixturenames:
        names = getattr(metafunc.module, "ENGINES", sorted(LAUNCHERS))
        params = [pytest.param(name, marks=MARKS.get(name, ())) for name in names]
        metafunc.parametrize("started_engine", params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def started_engine(request: pytest.FixtureRequest, first: Path) -> Iterator[RunningEngine]:
    with {**LAUNCHERS, "fake": fake_engine}[request.param](first) as engine:
        yield engine


@pytest.fixture
def engine(started_engine: RunningEngine, first: Path) -> RunningEngine:
    """Idle, unpaused, and serving `first` as version `first`."""
    started_engine.post("/continue_generation", {})
    started_engine.post("/abort_request", {"abort_all": True})
    wait_until(lambda: started_engine.update(first, "first").is_success)
    return started_engine
