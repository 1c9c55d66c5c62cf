"""The engine as an ASGI application: which path is answered by what, and who may call it.

With an API key everything but /health* and /ready wants it, as with SGLang's `--api-key` alone.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from infra.engines.embedded.cli import Options
from infra.engines.embedded.live_model import LiveModel
from infra.engines.embedded.sampling import BadRequest
from infra.engines.embedded.scheduler import Scheduler
from infra.errors import EngineDead

OPEN_PATHS = frozenset({"/health", "/health_generate", "/ready"})


@dataclass(slots=True)
class Engine:
    """What the routes share. One weight update at a time: `updating` is held from the first read to the swap.

    `healthy` is the outcome of the last health check.
    """

    options: Options
    model: LiveModel
    scheduler: Scheduler = field(init=False)
    updating: asyncio.Lock = field(default_factory=asyncio.Lock)
    healthy: bool = True

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            self.model, max_running=self.options.max_running_requests, torch_threads=self.options.torch_threads
        )

    def identity(self) -> tuple[str, str]:
        served = self.model.served
        return served.path, served.version


class BearerKey:
    """Answers 401 where the key is missing or wrong."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._expected = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def build_app(engine: Engine) -> Starlette:
    from infra.engines.embedded import routes_control, routes_generate

    key = engine.options.api_key
    app = Starlette(
        routes=[*routes_generate.ROUTES, *routes_control.ROUTES],
        middleware=[] if key is None else [Middleware(BearerKey, key=key)],
        exception_handlers={BadRequest: _bad_request, EngineDead: _unavailable},
    )
    app.state.engine = engine
    return app


def engine_of(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def json_object(request: Request) -> dict[str, Any]:
    """The body as an object; none at all is refused, as in SGLang, and so is half a surrogate pair. Raises: BadRequest."""
    try:
        body = orjson.loads(await request.body())
    except ValueError as error:
        raise BadRequest(f"a JSON object is wanted as the body of {request.url.path}: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest(f"a JSON object is wanted as the body of {request.url.path}, got {body!r}")
    return body


async def _bad_request(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error)}}, 400)


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error)}}, 503)
