"""POST /generate answers when every request of the body has finished; one whose client went away leaves the batch."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from infra.engines.embedded.app import engine_of, json_object
from infra.engines.embedded.decoding import Decoding
from infra.engines.embedded.sampling import BadRequest
from infra.engines.embedded.scheduler import Scheduler
from infra.engines.embedded.wire import parse_generate, render

CLIENT_CLOSED_REQUEST = 499


async def generate(request: Request) -> Response:
    engine = engine_of(request)
    decodings, many = parse_generate(await json_object(request), engine.model)
    if len({decoding.rid for decoding in decodings}) < len(decodings):
        raise BadRequest("two requests of one body have the same rid")
    if not await _finish_or_lose_client(request, engine.scheduler, decodings):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    answers = [render(decoding.future.result()) for decoding in decodings]
    return JSONResponse(answers if many else answers[0])


async def _finish_or_lose_client(request: Request, scheduler: Scheduler, decodings: list[Decoding]) -> bool:
    """True when all are done; False when the client disconnected first, and then they are aborted."""
    pending = [asyncio.wrap_future(scheduler.submit(decoding)) for decoding in decodings]
    disconnect = asyncio.create_task(_disconnected(request))
    finished = asyncio.create_task(_wait_all(pending))
    try:
        await asyncio.wait({disconnect, finished}, return_when=asyncio.FIRST_COMPLETED)
        if finished.done():
            finished.result()
        return finished.done()
    finally:
        disconnect.cancel()
        finished.cancel()
        mine = set(map(id, decodings))
        if not all(decoding.future.done() for decoding in decodings):
            scheduler.abort(lambda decoding: id(decoding) in mine)


async def _wait_all(pending: list[asyncio.Future[Decoding]]) -> None:
    """Raises what the first of them raised."""
    done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
    for future in done:
        future.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


ROUTES = [Route("/generate", generate, methods=["POST", "PUT"])]
