"""A point is projected by a process that nobody waits for and that the kernel ends at its deadline, whatever it hangs in.

`python -m infra.sinks.background STORE RUN SINK SECONDS` writes what is missing of the run; its log is `logs/sinks.log`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys

from infra.config import Settings, load_settings
from infra.errors import PinpointError
from infra.sinks import Place
from infra.sinks.projection import project
from infra.store import Store

logger = logging.getLogger(__name__)
DEADLINE_S = 120


def start(store_url: str, run: str) -> list[int]:
    """One process for each sink of the settings; gives their ids. Never raises: `pinpoint replay` makes up for what fails."""
    try:
        settings = load_settings()
        return [_start(settings, store_url, run, sink) for sink in settings.sinks]
    except (PinpointError, OSError) as error:
        logger.error("run %s is not projected now: %s", run, error)
        return []


def _start(settings: Settings, store_url: str, run: str, sink: str) -> int:
    logs = settings.home.expanduser().absolute() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "infra.sinks.background", store_url, run, sink, str(DEADLINE_S)]
    with (logs / "sinks.log").open("ab") as log:  # a pipe of ours would keep whoever reads it waiting
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).pid


def main(store_url: str, run: str, sink: str, deadline_s: str) -> None:
    """Ends by SIGALRM at the deadline: no Python is needed for that, so nothing that hangs can prevent it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(deadline_s))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    settings = load_settings()
    settings.export_s3()
    try:
        target, new, points = project(sink, Place(store=Store(store_url), run=run, home=settings.home))
    except PinpointError as error:
        logger.error("run %s: %s", run, error)
        os._exit(1)  # no thread of a sink that failed is waited for
    logger.info("run %s: %d of %d points were new to %s", run, new, points, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
