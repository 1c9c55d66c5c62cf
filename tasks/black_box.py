"""A snapshot is given to a user's own evaluation as a folder, and numbers come back, or a skip with its reason.

It has a process of its own, which is gone when the task ends, whatever it did. What weights it used is its own affair: the
report says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from prefect import task
from pydantic import TypeAdapter

from infra.concurrency import in_thread
from infra.config import load_settings
from infra.errors import BlackBoxFailed, EvalSkip, PinViolation
from infra.fetched import NodeCache
from infra.model import BlackBoxSpec, EvalRequest, Manifest, SnapshotRef
from infra.processes import fated
from tasks.retrying import UNCACHED

logger = logging.getLogger(__name__)
TIMEOUT_S = 24 * 3600  # the point's own deadline is the one that counts
DISPOSE_S = 30.0
_MANIFEST = TypeAdapter(Manifest)


@task(name="black_box", task_run_name="evaluate step {request.point.step}", timeout_seconds=TIMEOUT_S, **UNCACHED)
async def evaluate_checkpoint(request: EvalRequest, spec: BlackBoxSpec, snapshot: SnapshotRef) -> dict[str, float]:
    """Raises EvalSkip and PinViolation as the evaluation does, BlackBoxFailed for another exception, which is logged whole."""
    settings = load_settings()
    cache = NodeCache(settings.staging_dir / "fetched" / f"black-box-{uuid.uuid4().hex}", settings.fetched_bytes)
    stopping = threading.Event()
    try:
        folder, merged = await in_thread(partial(cache.loadable, snapshot, stopping), stopping)
        answer = await _ask(spec, folder, _input(request, snapshot, merged or snapshot.manifest))
    finally:
        with anyio.CancelScope(shield=True):
            await asyncio.to_thread(cache.evict)
    if "skip" in answer:
        raise EvalSkip(answer["skip"]["reason"], answer["skip"]["message"])
    if "pin_violation" in answer:
        found = answer["pin_violation"]
        raise PinViolation(found["message"], expected=found["expected"], reported=found["reported"])
    if "error" in answer:
        logger.error("%s failed on %s:\n%s", spec.function, request.point.name, answer["error"]["traceback"])
        raise BlackBoxFailed(f"{spec.function}: {answer['error']['message']}")
    return dict(answer["metrics"])


def _input(request: EvalRequest, snapshot: SnapshotRef, inside: Manifest) -> dict[str, Any]:
    """What the evaluation is told beside the folder, `inside` which is what it says; docs/black-box.md lists it."""
    return {
        **asdict(request.point),
        "weight_version": snapshot.version.token,
        "snapshot_digest": snapshot.manifest.snapshot_digest,
        "suite": request.suite.model_dump(mode="json"),
        "manifest": _MANIFEST.dump_python(inside, mode="json"),
    }


async def _ask(spec: BlackBoxSpec, folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    asked = {"function": spec.function, "settings": spec.settings, "checkpoint_dir": str(folder), "input": given}
    with tempfile.TemporaryDirectory(prefix="pinpoint-black-box-") as place:
        answer = Path(place) / "answer.json"
        command = fated([sys.executable, "-m", "infra.black_box", str(answer)])
        process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, start_new_session=True)
        try:
            await process.communicate(json.dumps(asked).encode())
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
        if not answer.exists():
            raise BlackBoxFailed(f"{spec.function} ended with code {process.returncode} and gave no answer")
        return dict(json.loads(answer.read_text()))


async def _end(process: asyncio.subprocess.Process) -> None:
    """It is told to end and given time to dispose; then it, and what it started in its group, is killed."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), DISPOSE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
