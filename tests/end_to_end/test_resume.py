"""A flow that is killed at half and started again repeats only what was in flight, and its number is that of a quiet run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from infra.model import DatasetResult, EvalPoint, EvalReport, EvalRequest, Sample, Sampling
from infra.records import find, read_samples
from tests.end_to_end.counted import COUNT_IN
from tests.end_to_end.points import Points, wait_until
from tests.services.stack import FLEET, RunningStack

EACH = 25
TOTAL = 40 * EACH
IN_FLIGHT = 2 * 72  # of two engines, as many as each is asked at once after a second or so
JUST_FINISHED = 0.1  # of all: what is in no segment yet


def requested(points: Points, step: int) -> EvalRequest:
    """Greedy, so that a response is the same whenever it is drawn."""
    greedy = {"sampling": Sampling(max_new_tokens=100), "samples_per_prompt": EACH, "generate": "tests.end_to_end.counted:ask"}
    made = points.request(step, dataset=points.dataset.model_copy(update=greedy))
    return made.model_copy(update={"fleet": FLEET.model_copy(update={"name": "resumed", "lease_ttl_s": 20.0})})


def started(request: EvalRequest, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Its process, and the file that has a line for each request it makes."""
    asked, parameters = folder / f"asked-{request.point.step}", folder / f"request-{request.point.step}.json"
    parameters.write_text(request.model_dump_json())
    asked.touch()
    command = [sys.executable, "-m", "tests.end_to_end.counted", str(parameters)]
    return subprocess.Popen(command, env={**os.environ, COUNT_IN: str(asked)}), asked


def measured(points: Points, step: int) -> tuple[DatasetResult, list[Sample]]:
    point = EvalPoint(run=points.run, step=step)
    report = find(points.store, point, "suite")
    assert isinstance(report, EvalReport), report
    samples = sorted(read_samples(points.store, point, "suite", "rows"), key=lambda s: (s.problem_id, s.index))
    return report.results[0], samples


def test_a_killed_flow_that_is_started_again_repeats_only_what_was_in_flight(
    services: RunningStack, points: Points, tmp_path: Path
) -> None:
    quiet, asked = started(requested(points, 1), tmp_path)
    assert quiet.wait(240) == 0
    assert len(asked.read_text().split()) == TOTAL

    request = requested(points, 2)
    flow, asked = started(request, tmp_path)
    try:
        wait_until(lambda: len(asked.read_text().split()) >= TOTAL // 2 or flow.poll() is not None, 240)
        assert flow.poll() is None, "it ended before it was half done"
    finally:
        flow.kill()
        flow.wait()
    assert find(points.store, request.point, "suite") is None
    assert any("/log/rows/" in key for key in points.store.list(f"runs/{points.run}/points"))
    before = len(asked.read_text().split())

    again, asked = started(request, tmp_path)
    assert again.wait(240) == 0
    times = Counter(asked.read_text().split())
    repeated = sum(times.values()) - TOTAL
    assert len(times) == TOTAL
    assert before >= TOTAL // 2
    assert repeated <= IN_FLIGHT + JUST_FINISHED * TOTAL, f"{repeated} of {TOTAL} were asked again, {before} before the kill"

    (first, undisturbed), (second, resumed) = measured(points, 1), measured(points, 2)
    assert [(s.problem_id, s.index, s.response, s.reward) for s in resumed] == [
        (s.problem_id, s.index, s.response, s.reward) for s in undisturbed
    ]
    assert (first.score, first.outcomes, second.n_samples) == (second.score, second.outcomes, TOTAL)
    assert len({version for s in resumed for version in s.weight_versions}) == 1
    assert not any("/log/" in key for key in points.store.list(f"runs/{points.run}/points"))

    shown = services.post(
        "/artifacts/filter", {"artifacts": {"type": {"any_": ["progress"]}, "key": {"any_": ["progress-rows"]}}}
    )
    said = [artifact["description"] for artifact in shown]
    assert any(f"rows: {TOTAL:,} of {TOTAL:,} samples" in text and "from before" in text for text in said), said
