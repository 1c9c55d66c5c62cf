"""An engine's key is found where the flow runs; it is no parameter."""

from __future__ import annotations

import pytest

from infra.errors import ConfigError
from tasks.attach import api_key


async def test_the_key_is_in_a_variable_of_the_flows_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "secret")
    assert await api_key("env:ENGINE_KEY") == "secret"
    assert await api_key("") == ""


async def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"\$ENGINE_KEY, which is not set where the flow runs"):
        await api_key("env:ENGINE_KEY")
