"""What goes wrong while a piece is looked at is found of it, and ends no other look."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import pytest

from flows.diagnosis.finding import Finding, found_by
from infra.errors import ConfigError


@pytest.mark.parametrize(
    ("error", "found", "remedy"),
    [
        (ConfigError("no such store: mend it"), "no such store: mend it", ""),
        (httpx.ReadTimeout("timed out"), "ReadTimeout: timed out", "try again"),
        (PermissionError(13, "Permission denied", "/x"), "PermissionError: [Errno 13] Permission denied: '/x'", "try again"),
    ],
)
def test_whatever_a_look_meets_is_a_fault(error: Exception, found: str, remedy: str) -> None:
    def look() -> Sequence[Finding]:
        raise error

    assert found_by("Prefect", look) == [Finding(piece="Prefect", verdict="fault", found=found, remedy=remedy)]
