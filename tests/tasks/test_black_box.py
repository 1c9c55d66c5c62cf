"""A user's own evaluation can hang, crash or lie, and costs its point at most; it is disposed of on every outcome."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from infra.black_box import evaluation_class
from infra.errors import BlackBoxFailed, ConfigError, EvalSkip, PinViolation
from infra.model import BlackBoxSpec, EvalRequest, FleetSpec, SnapshotRef, SnapshotSource, Suite
from infra.snapshot import describe, validate
from tasks import black_box
from tasks.black_box import evaluate_checkpoint
from tasks.retrying import worth_retrying
from tasks.skip import as_skip
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import POINT
from tests.services.waiting import until

BOXES = "tests.fakes.black_boxes."


def request(folder: Path, kind: str, **changes: Any) -> EvalRequest:
    spec = BlackBoxSpec(function=BOXES + kind, settings={"notes": str(folder)})
    source, url = SnapshotSource(path=str(folder / "checkpoint")), (folder / "store").as_uri()
    return EvalRequest(point=POINT, source=source, suite=Suite(name="own"), black_box=spec, store_url=url, **changes)


async def evaluate(folder: Path, kind: str) -> dict[str, float]:
    asked, checkpoint = request(folder, kind), make_checkpoint(folder / "checkpoint")
    manifest = describe(checkpoint, validate(checkpoint), POINT)
    snapshot = SnapshotRef(point=POINT, location=checkpoint.as_uri(), manifest=manifest, owned=False)
    assert asked.black_box is not None
    return await evaluate_checkpoint.fn(asked, asked.black_box, snapshot)


def process_is_gone(folder: Path) -> bool:
    return not psutil.pid_exists(int((folder / "made").read_text()))


@pytest.mark.parametrize("kind", ["Well", "DisposesAtOnce"])
async def test_a_folder_goes_in_and_numbers_come_out(tmp_path: Path, kind: str) -> None:
    size = (make_checkpoint(tmp_path / "same") / "model.safetensors").stat().st_size
    assert await evaluate(tmp_path, kind) == {"size": size, "step": POINT.step}
    assert (tmp_path / "saw").read_text() == "config.json model.safetensors tokenizer.json"
    assert (tmp_path / "disposed").exists()
    assert process_is_gone(tmp_path)


async def test_a_skip_keeps_its_reason(tmp_path: Path) -> None:
    with pytest.raises(EvalSkip) as caught:
        await evaluate(tmp_path, "Skips")
    assert (caught.value.reason, caught.value.message) == ("license_server", "no seat was free")
    assert (tmp_path / "disposed").exists()


async def test_other_weights_than_the_snapshots_are_a_pin_violation_which_says_whose(tmp_path: Path) -> None:
    with pytest.raises(PinViolation, match="the server moved on") as caught:
        await evaluate(tmp_path, "FindsOtherWeights")
    assert (caught.value.expected, caught.value.reported) == ("run/1", {"server": "run/2"})
    skip = as_skip(caught.value)
    assert skip is not None
    assert skip.reason == "pin_violation"
    assert (tmp_path / "disposed").exists()


@pytest.mark.parametrize(
    ("kind", "said", "disposed"),
    [
        ("Raises", "KeyError: 'my own bug'", True),
        ("Dies", "ended with code -9 and gave no answer", False),
        ("SaysNothing", "it returned None: return a mapping of names to numbers", True),
        ("SaysWords", "its metric 'score' is 'good', which is no number", True),
        ("SaysNan", "which is not finite", True),
    ],
)
async def test_what_fails_is_a_crashed_point_and_is_not_tried_again(
    tmp_path: Path, kind: str, said: str, disposed: bool
) -> None:
    with pytest.raises(BlackBoxFailed, match=said) as caught:
        await evaluate(tmp_path, kind)
    skip = as_skip(caught.value)
    assert skip is not None
    assert skip.reason == "crashed"
    assert BOXES + kind in skip.message
    assert not worth_retrying(caught.value)
    assert (tmp_path / "disposed").exists() is disposed
    assert process_is_gone(tmp_path)


@pytest.mark.parametrize(("kind", "disposed"), [("Waits", True), ("Blocks", False)])
async def test_at_the_deadline_it_may_dispose_and_then_is_gone(
    tmp_path: Path, kind: str, disposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(black_box, "DISPOSE_S", 3.0)
    running = asyncio.create_task(evaluate(tmp_path, kind))
    await asyncio.to_thread(until, (tmp_path / "waiting").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tmp_path / "disposed").exists() is disposed
    assert process_is_gone(tmp_path)


ORPHAN = """
import subprocess, sys, time
child = "import infra.black_box as box; box.DISPOSE_S = 1.0; box.main()"
asked = open(sys.argv[1])
subprocess.Popen([sys.executable, "-c", child, sys.argv[2]], stdin=asked, start_new_session=True)
time.sleep(60)
"""


async def test_one_that_blocks_does_not_outlive_a_killed_flow(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "checkpoint")
    asked = {"function": BOXES + "Blocks", "settings": {"notes": str(tmp_path)}, "checkpoint_dir": str(folder), "input": {}}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    arguments = [str(tmp_path / "asked.json"), str(tmp_path / "answer.json")]
    flow = await asyncio.create_subprocess_exec(sys.executable, "-c", ORPHAN, *arguments)
    await asyncio.to_thread(until, (tmp_path / "waiting").exists)
    flow.kill()
    await flow.wait()
    await asyncio.to_thread(until, lambda: process_is_gone(tmp_path))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no.such.module.Class", "can't be imported: ModuleNotFoundError"),
        (BOXES + "Nobody", "can't be imported: AttributeError"),
        ("nothing", "can't be imported"),
        (BOXES + "a_function", "a_function is no CheckpointEvalFn: it must be a class"),
        (BOXES + "Unfinished", "and lacks evaluate_checkpoint"),
    ],
)
def test_a_path_that_is_no_evaluation_is_refused_by_name(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        evaluation_class(path)


def test_both_ways_of_naming_a_class_are_understood() -> None:
    assert evaluation_class("tests.fakes.black_boxes:Well") is evaluation_class(BOXES + "Well")


def test_a_fleet_and_a_black_box_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fleet big and black box tests.fakes.black_boxes.Well exclude each other"):
        request(tmp_path, "Well", fleet=FleetSpec(name="big", num_engines=8))


def test_without_a_black_box_a_suite_has_something_to_measure(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ValidationError), match="suite own has no datasets"):
        EvalRequest(point=POINT, source=SnapshotSource(path="/c"), suite=Suite(name="own"), store_url=tmp_path.as_uri())
