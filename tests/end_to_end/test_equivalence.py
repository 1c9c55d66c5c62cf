"""A fleet and the black boxes give the same samples of one snapshot under greedy decoding."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra import sample_files
from infra.model import BlackBoxSpec, EvalReport, FleetSpec, SkippedPoint, Suite
from infra.records import history
from infra.store import Store, path_of
from tests.end_to_end.command import PINPOINT
from tests.end_to_end.points import Points, wait_until
from tests.infra.harness_tasks import logged, write_generating
from tests.services.stack import RunningStack

ROOT = Path(__file__).parents[2]
FUNCTION = "infra.black_boxes.external_sglang.ExternalSGLang"
HARNESS = "infra.black_boxes.lm_eval_harness.LmEvalHarness"


def graded(samples: Iterable[dict[str, Any]]) -> list[tuple[str, int, str, float]]:
    return sorted((s["problem_id"], s["index"], s["response"], s["reward"]) for s in samples)


def test_the_same_snapshot_gives_the_same_samples_either_way(services: RunningStack, points: Points, tmp_path: Path) -> None:
    points.submit(points.request(1))
    fleet = points.record(1)
    spec = BlackBoxSpec(function=FUNCTION, settings={"engine": "embedded", "samples_dir": str(tmp_path)})
    points.submit(points.request(2).model_copy(update={"black_box": spec, "fleet": FleetSpec()}))
    own = points.record(2)
    assert isinstance(fleet, EvalReport)
    assert isinstance(own, EvalReport), own
    assert graded(in_order(tmp_path / "rows.jsonl")) == graded(kept(fleet))
    assert fleet.results[0].score is not None
    assert own.metrics["rows"] == fleet.results[0].score.mean
    wait_until(points.nothing_left)


def test_lm_eval_gives_the_verdicts_of_a_fleet_and_of_a_server_of_ones_own(
    services: RunningStack, points: Points, tmp_path: Path
) -> None:
    """Half of the answers are what the model says, so that right and wrong both occur."""
    points.submit(points.request(1))
    said = [sample["response"] for sample in kept(points.record(1))]
    rows = [{"prompt": f"{n:02d}+01=", "answer": text if n % 2 else "0"} for n, text in enumerate(said)]
    write_generating(tmp_path / "tasks", "rows", rows, max_tokens=8)
    own_rows = points.dataset.model_copy(update={"source": str(tmp_path / "tasks" / "rows.jsonl")})
    points.submit(points.request(2, dataset=own_rows))
    fleet = [(sample["response"], sample["reward"]) for sample in kept(points.record(2))]

    server = BlackBoxSpec(function=FUNCTION, settings={"engine": "embedded", "samples_dir": str(tmp_path / "server")})
    (tmp_path / "server").mkdir()
    points.submit(points.request(3, dataset=own_rows).model_copy(update={"black_box": server, "fleet": FleetSpec()}))
    assert isinstance(points.record(3), EvalReport), points.record(3)
    samples = in_order(tmp_path / "server" / "rows.jsonl")
    assert [(sample["response"], sample["reward"]) for sample in samples] == fleet

    settings = {"engine": "embedded", "tasks": ["rows"], "include_path": str(tmp_path / "tasks")}
    harness = BlackBoxSpec(function=HARNESS, settings={**settings, "samples_dir": str(tmp_path / "harness")})
    without_datasets = {"suite": Suite(name="suite"), "black_box": harness, "fleet": FleetSpec()}
    points.submit(points.request(4).model_copy(update=without_datasets))
    by_lm_eval = points.record(4)
    assert isinstance(by_lm_eval, EvalReport), by_lm_eval
    verdicts = [(sample["resps"][0][0], sample["exact_match"]) for sample in logged(tmp_path / "harness", "rows")]
    assert verdicts == fleet
    assert by_lm_eval.metrics["rows/exact_match"] == 0.5
    wait_until(points.nothing_left)


def kept(record: EvalReport | SkippedPoint) -> list[dict[str, Any]]:
    """The samples that a fleet's report has, in the order of the rows."""
    assert isinstance(record, EvalReport), record
    samples = map(asdict, sample_files.read(path_of(record.results[0].samples_location)))
    return sorted(samples, key=lambda sample: str(sample["prompt"]))


def in_order(path: Path) -> list[dict[str, Any]]:
    """The same of the lines that a black box wrote."""
    return sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: str(sample["prompt"]))


def test_a_checkpoint_is_given_to_a_function_from_the_command_line(services: RunningStack, model: Path, tmp_path: Path) -> None:
    notes, store = tmp_path / "notes", (tmp_path / "store").as_uri()
    notes.mkdir()
    command = [PINPOINT, "evaluate", str(model), "--function", "tests.fakes.black_boxes.Well", "--set", f"notes={notes}"]
    command += ["--run", "own", "--step", "7", "--store", store]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    [record] = history(Store(store), "own")
    assert isinstance(record, EvalReport)
    assert record.metrics["step"] == 7
    assert "size" in done.stdout


def test_a_function_that_is_none_is_refused_in_one_line(model: Path) -> None:
    for function, said in (("no.such.Thing", "can't be imported"), ("os.path.join", "join is no CheckpointEvalFn")):
        command = [PINPOINT, "evaluate", str(model), "--function", function]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
