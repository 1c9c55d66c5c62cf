"""A flow in a process of its own, to be killed, and a generate function that leaves a line for each request it makes.

`python -m tests.end_to_end.counted REQUEST` runs `evaluate_snapshot` as a runner does, but nobody looks after it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from infra.engines.client import Generation
from infra.model import EvalRequest, Problem
from infra.running.custom_generate import PinnedEngine

COUNT_IN = "COUNT_REQUESTS_IN"


async def ask(engine: PinnedEngine, problem: Problem, index: int) -> Generation:
    line = f"{problem.id}/{index}\n".encode()
    file = os.open(os.environ[COUNT_IN], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line)
    finally:
        os.close(file)
    return await engine.generate(engine.render(problem))


def main() -> None:
    from flows.evaluate_snapshot import evaluate_snapshot
    from tasks import progress

    progress.LAST_S = 60.0  # the test reads what was shown last, however busy Prefect is
    request = EvalRequest.model_validate_json(Path(sys.argv[1]).read_bytes())
    asyncio.run(evaluate_snapshot(request))


if __name__ == "__main__":
    main()
