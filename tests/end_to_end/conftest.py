from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.points import Points, run_name
from tests.services.stack import RunningStack, running_stack
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder starts real services."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def services() -> Iterator[RunningStack]:
    with running_stack() as running:
        yield running


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_model(3, hidden=32, layers=2).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def points(services: RunningStack, model: Path, request: pytest.FixtureRequest) -> Points:
    return Points(services, model, run_name(request))
