"""What a controller reads and sets. A refused update answers 400 and leaves weights, label and path as they were."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, get_args

import xxhash
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from infra.engines.embedded.app import engine_of, json_object
from infra.engines.embedded.live_model import ALGORITHM
from infra.engines.embedded.sampling import BadRequest
from infra.engines.embedded.scheduler import PauseMode
from infra.errors import EngineDead, SnapshotError

HEALTH_TIMEOUT_S = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))
STARTED_AT = time.time()


async def health(request: Request) -> Response:
    """200 once a token was generated; 503 after the time-out, and so while paused for longer."""
    engine = engine_of(request)
    try:
        await asyncio.wait_for(asyncio.wrap_future(engine.scheduler.probe()), HEALTH_TIMEOUT_S)
        engine.healthy = True
    except (TimeoutError, EngineDead):
        engine.healthy = False
    return Response(status_code=200 if engine.healthy else 503)


async def ready(request: Request) -> Response:
    """As in SGLang: not while paused, and not from a health check that failed until one that does not."""
    engine = engine_of(request)
    takes_requests = engine.healthy and not engine.scheduler.paused and not engine.scheduler.closed
    return Response(status_code=200 if takes_requests else 503)


async def model_info(request: Request) -> Response:
    engine = engine_of(request)
    served, config = engine.model.served, engine.model.module.config
    return JSONResponse(
        {
            "model_path": served.path,
            "tokenizer_path": served.path,
            "is_generation": True,
            "weight_version": served.version,
            "model_type": config.model_type,
            "architectures": config.architectures or [type(engine.model.module).__name__],
            "load_format": "safetensors",
            "served_model_name": _served_name(request),
            "engine": "embedded",
        }
    )


def _served_name(request: Request) -> str:
    """As in SGLang an update renames it: the name given at the start holds until then."""
    engine = engine_of(request)
    path = engine.model.served.path
    return engine.options.served_model_name or path if path == engine.options.model_path else path


async def server_info(request: Request) -> Response:
    """The arguments of the start, so `weight_version` here is the first one for ever, as in SGLang.

    As there, it is a round trip to the part that generates, paused or not: one that is stuck gives no answer.
    """
    engine = engine_of(request)
    await asyncio.wrap_future(engine.scheduler.is_idle())
    arguments = {name: value for name, value in asdict(engine.options).items() if name != "api_key"}
    state = {"peak_running_reqs": engine.scheduler.loads.peak_running, "uptime_s": time.time() - STARTED_AT}
    return JSONResponse({**arguments, "version": "embedded", "internal_states": [state]})


async def loads(request: Request) -> Response:
    engine = engine_of(request)
    now = engine.scheduler.loads
    capacity = engine.options.max_running_requests * engine.model.context_length
    rank = {
        "dp_rank": 0,
        "num_running_reqs": now.running,
        "num_waiting_reqs": now.waiting,
        "num_total_reqs": now.running + now.waiting,
        "num_used_tokens": now.used_tokens,
        "max_total_num_tokens": capacity,
        "token_usage": now.used_tokens / capacity,
        "max_running_requests": engine.options.max_running_requests,
    }
    return JSONResponse({"timestamp": datetime.now(UTC).isoformat(), "version": "embedded", "loads": [rank]})


async def update_weights_from_disk(request: Request) -> Response:
    engine, body = engine_of(request), await json_object(request)
    path, version = body.get("model_path"), body.get("weight_version")
    if not isinstance(path, str) or not isinstance(version, str | None):
        raise BadRequest("model_path must be a text, and weight_version a text where given")
    async with engine.updating:
        try:
            weights = await asyncio.to_thread(engine.model.prepare, path)
        except SnapshotError as error:
            return _update_answer(False, str(error), 0)
        outcome = await asyncio.wrap_future(
            engine.scheduler.swap(
                weights,
                version,
                flush_cache=body.get("flush_cache", True) is not False,
                abort_all=body.get("abort_all_requests") is True,
            )
        )
    return _update_answer(outcome.success, outcome.message, outcome.paused_requests)


def _update_answer(success: bool, message: str, paused: int) -> Response:
    body = {"success": success, "message": message, "num_paused_requests": paused}
    return JSONResponse(body, 200 if success else 400)


async def pause_generation(request: Request) -> Response:
    body = await json_object(request)
    mode: Any = body.get("mode", "abort")
    if mode not in get_args(PauseMode):
        raise BadRequest(f"mode must be one of {', '.join(get_args(PauseMode))}, got {mode!r}")
    await asyncio.wrap_future(engine_of(request).scheduler.pause(mode))
    return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})


async def continue_generation(request: Request) -> Response:
    await json_object(request)
    await asyncio.wrap_future(engine_of(request).scheduler.resume())
    return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})


async def abort_request(request: Request) -> Response:
    body = await json_object(request)
    everything, rid = body.get("abort_all") is True, body.get("rid")
    await asyncio.wrap_future(engine_of(request).scheduler.abort(lambda one: everything or one.rid == rid))
    return Response()


async def flush_cache(request: Request) -> Response:
    """There is no prefix cache to flush; what this answers is whether the engine is idle."""
    if await asyncio.wrap_future(engine_of(request).scheduler.is_idle()):
        return PlainTextResponse("Cache flushed.\n")
    return PlainTextResponse("Cache not flushed: requests are running or waiting.\n", 400)


async def weights_checker(request: Request) -> Response:
    body = await json_object(request)
    if body.get("action") != "checksum":
        raise BadRequest(f"action must be checksum, got {body.get('action')!r}")
    checksums = await asyncio.wrap_future(engine_of(request).scheduler.checksums())
    lines = "".join(f"{name}:{checksum}\n" for name, checksum in sorted(checksums.items()))
    return JSONResponse(
        {
            "success": True,
            "message": "Success.",
            "algorithm": ALGORITHM,
            "ranks": [{"checksums": checksums}],
            "per_engine_checksum": xxhash.xxh3_128_hexdigest(lines.encode()),
        }
    )


ROUTES = [
    Route("/health", health),
    Route("/health_generate", health),
    Route("/ready", ready),
    Route("/model_info", model_info),
    Route("/get_model_info", model_info),
    Route("/server_info", server_info),
    Route("/get_server_info", server_info),
    Route("/v1/loads", loads),
    Route("/update_weights_from_disk", update_weights_from_disk, methods=["POST"]),
    Route("/pause_generation", pause_generation, methods=["POST"]),
    Route("/continue_generation", continue_generation, methods=["POST"]),
    Route("/abort_request", abort_request, methods=["POST"]),
    Route("/flush_cache", flush_cache, methods=["GET", "POST"]),
    Route("/weights_checker", weights_checker, methods=["POST"]),
]
