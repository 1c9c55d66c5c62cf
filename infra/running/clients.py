"""One client an engine process, opened when it is first asked, and closed with the dataset."""

from __future__ import annotations

from contextlib import AsyncExitStack

from infra.engines.client import EngineClient
from infra.roster import Engine


class Clients:
    """All are closed with `stack`."""

    def __init__(self, stack: AsyncExitStack, api_key: str) -> None:
        self._stack, self._api_key = stack, api_key
        self._opened: dict[str, EngineClient] = {}

    @property
    def opened(self) -> tuple[EngineClient, ...]:
        return tuple(self._opened.values())

    async def of(self, engine: Engine) -> EngineClient:
        if engine.base_url not in self._opened:
            client = EngineClient(engine.base_url, self._api_key)
            self._opened[engine.base_url] = client  # before the await: others may ask meanwhile
            await self._stack.enter_async_context(client)
        return self._opened[engine.base_url]
