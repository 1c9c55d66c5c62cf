"""A process in which several triggers fire at once; each flow run that it has created is begun, and says so when it executes.

`python -m tests.infra.triggers HOME GO THREADS`: waits for the file GO, so that all processes fire together.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from pathlib import Path

from infra.model import EvalRequest
from infra.saved.round import run_round
from infra.saved.survey import Survey
from tests.infra.saved_checkpoints import FLEET, Root, begins


def fire(root: Root, barrier: threading.Barrier) -> None:
    def send(request: EvalRequest) -> str:
        execution = uuid.uuid4().hex
        root.store.write(f"submissions/{request.point.step}/{execution}", b"")
        if begins(root.store, request, execution):
            root.store.write(f"executions/{request.point.step}/{execution}", b"")
        return execution

    survey = Survey.of(root.store, root.asked(), root.suite, FLEET)
    barrier.wait()
    run_round(survey, FLEET, send)


def fire_together(root: Root, threads: int) -> None:
    barrier = threading.Barrier(threads)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            fire(root, barrier)
        except BaseException as error:  # noqa: BLE001 (the test shows it)
            failed.append(error)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]


def executions(root: Root) -> list[int]:
    """The steps that were executed, each as often as it was."""
    return sorted(int(key.split("/")[1]) for key in root.store.list("executions"))


def submissions(root: Root) -> list[int]:
    return sorted(int(key.split("/")[1]) for key in root.store.list("submissions"))


if __name__ == "__main__":
    home, go, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    opened = Root(home, steps=0)
    print("ready", flush=True)
    while not go.exists():
        time.sleep(0.01)
    fire_together(opened, count)
