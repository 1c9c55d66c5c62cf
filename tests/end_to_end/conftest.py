from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.stack import RunningStack, running_stack

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
