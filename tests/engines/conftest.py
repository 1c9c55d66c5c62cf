"""`engine` is any server of the protocol, reset before each test; another one joins by its entry in LAUNCHERS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.launching import RunningEngine, embedded_engine
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

CONTEXT_LENGTH = 8192

LAUNCHERS: dict[str, Callable[[Path], AbstractContextManager[RunningEngine]]] = {"embedded": embedded_engine}


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


@pytest.fixture(scope="session", params=sorted(LAUNCHERS))
def started_engine(request: pytest.FixtureRequest, first: Path) -> Iterator[RunningEngine]:
    with LAUNCHERS[request.param](first) as engine:
        yield engine


@pytest.fixture
def engine(started_engine: RunningEngine, first: Path) -> RunningEngine:
    """Idle, unpaused, and serving `first` as version `first`."""
    started_engine.post("/continue_generation", {})
    started_engine.post("/abort_request", {"abort_all": True})
    started_engine.update(first, "first").raise_for_status()
    return started_engine
