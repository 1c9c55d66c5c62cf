"""Real services that several parts of the suite share; nothing starts before a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def s3_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_service: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A real S3 server, with its endpoint and credentials in this test's environment."""
    for name, value in s3_service.environment.items():
        monkeypatch.setenv(name, value)
    return s3_service
