"""A served engine ends within a second or two of SIGTERM with exit code 0, and never outlives its model thread.

Requests in flight at SIGTERM answer 503. If the model thread dies of a bug, the process ends with 1, because an
engine that answers but can't generate is worse than none.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from types import FrameType

import torch
import uvicorn

from infra.engines.embedded.app import Engine, build_app
from infra.engines.embedded.cli import Options
from infra.engines.embedded.live_model import LiveModel
from infra.engines.embedded.scheduler import Scheduler
from infra.errors import PortInUse

SHUTDOWN_TIMEOUT_S = 2
logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Stops the model thread first, so that requests in flight answer and don't hold the shutdown."""

    def __init__(self, config: uvicorn.Config, scheduler: Scheduler) -> None:
        super().__init__(config)
        self._scheduler = scheduler

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._scheduler.stop()
        super().handle_exit(sig, frame)


def serve(options: Options, listener: socket.socket) -> int:
    """Load, listen, and serve until a signal; returns the exit code.

    Raises:
        SnapshotError: `model_path` is no checkpoint this engine can serve.
        PortInUse: another process began to listen on the port while the model loaded.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(options.torch_threads)
    model = LiveModel.load(options.model_path, options.weight_version)
    try:
        listener.listen(2048)
    except OSError as error:
        raise PortInUse(options.port, "the embedded engine", "--port") from error
    return _run(Engine(options, model), listener)


def _run(engine: Engine, listener: socket.socket) -> int:
    config = uvicorn.Config(
        build_app(engine),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
    )
    server = _Server(config, engine.scheduler)
    # uvicorn raises the signal again once it has shut down; this turns that into a clean exit.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    engine.scheduler.start(on_end=lambda: setattr(server, "should_exit", True))
    host, port = listener.getsockname()[:2]
    logger.info("ready on http://%s:%d model=%s version=%s", host, port, *engine.identity())
    server.run(sockets=[listener])
    return 1 if engine.scheduler.crashed else 0
