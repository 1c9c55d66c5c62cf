"""A task that shows how far it is has a Prefect to show it to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.fakes.prefect_server import FakePrefect


@pytest.fixture
def prefect() -> Iterator[FakePrefect]:
    with FakePrefect() as server, temporary_settings({PREFECT_API_URL: server.api_url}):
        yield server
