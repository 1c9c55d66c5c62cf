"""What has no report under its key is submitted in the order that was asked for, and nothing else is, however often."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from infra import foreign, ledger, snapshot
from infra.errors import ConfigError, FileDamaged, ServiceUnreachable
from infra.holds import is_held
from infra.model import Care, EvalPoint, EvalRequest, FleetSpec, LedgerKey, Manifest, Order, Reevaluation, SkippedPoint
from infra.records import commit, history, record_key
from infra.saved import survey
from infra.saved.costs import costs
from infra.saved.elsewhere import note
from infra.saved.identity import checkpoint_digest
from infra.saved.layouts import Saved
from infra.saved.round import run_round
from infra.saved.rows import summary
from infra.saved.settled import Standing, look
from infra.saved.survey import Survey
from infra.store import Store
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import REPORT
from tests.infra.saved_checkpoints import FLEET, Root, begins


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "home", steps=3)


def test_all_are_submitted_newest_first_and_a_second_trigger_does_nothing(root: Root) -> None:
    assert root.steps() == [3, 2, 1]
    assert root.steps() == []
    assert root.states() == {1: "under way", 2: "under way", 3: "under way"}
    root.evaluate_all()
    assert root.steps() == []
    assert root.states() == {1: "evaluated", 2: "evaluated", 3: "evaluated"}


def test_a_request_says_what_is_measured_where_and_under_which_key(root: Root) -> None:
    root.steps()
    request = root.sent[0]
    assert (request.source.path, request.source.staged) == (str(root.saved / "step_3"), False)
    assert (request.point.run, request.point.step) == ("run", 3)
    assert request.ledger is not None
    assert request.ledger.number == 1
    assert len({sent.point.attempt for sent in root.sent}) == 3  # never the place of another point of the run
    assert request.fleet == FLEET


def test_a_new_checkpoint_is_all_that_a_later_trigger_submits(root: Root) -> None:
    root.steps()
    root.evaluate_all()
    make_checkpoint(root.saved / "step_4", seed=4)
    assert root.steps() == [4]


def test_the_same_weights_under_another_name_are_not_paid_for_twice(root: Root) -> None:
    root.steps()
    root.evaluate_all()
    shutil.copytree(root.saved / "step_3", root.saved / "step_9")
    assert root.steps() == []


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        ({"by": "newest"}, [7, 6, 5, 4, 3, 2, 1]),
        ({"by": "step"}, [1, 2, 3, 4, 5, 6, 7]),
        ({"by": "spread", "every": 3}, [1, 4, 7]),
        ({"by": "spread", "every": 5}, [1, 6]),
    ],
)
def test_the_order_is_the_one_that_was_asked_for(tmp_path: Path, order: dict[str, object], steps: list[int]) -> None:
    assert Root(tmp_path, steps=7).steps(order=order) == steps


def test_a_limit_and_what_may_be_under_way_at_once_bound_a_trigger(root: Root) -> None:
    assert root.steps(limit=1) == [3]
    assert root.steps(care={"settle_s": 0, "at_once": 1}) == []  # one is under way
    assert root.steps(care={"settle_s": 0, "at_once": 2}) == [2]
    root.evaluate_all()
    assert root.steps(care={"settle_s": 0, "at_once": 1}) == [1]


def test_a_search_for_a_target_goes_in_step_order_and_ends_at_the_first_that_reaches_it(tmp_path: Path) -> None:
    root = Root(tmp_path, steps=5)
    order = {"by": "target", "target": {"dataset": "sums", "score": 0.8}}
    for step, score in ((1, 0.2), (2, 0.7), (3, 0.81)):
        assert root.steps(order=order) == [step]
        assert root.steps(order=order) == []  # one after the other
        root.evaluate_all(score=score)
    done = root.round(order=order)
    assert done.submitted == ()
    assert done.reached is not None
    assert (done.reached.saved.step, done.reached.score, done.left) == (3, 0.81, 0)
    assert "reached at step 3, with 0.810" in summary(done)


def test_a_search_does_not_jump_over_a_checkpoint_that_is_still_written(tmp_path: Path) -> None:
    root = Root(tmp_path, steps=2)
    order = {"by": "target", "target": {"dataset": "sums", "score": 0.8}}
    (root.saved / "step_2" / "COMPLETE").write_text("")
    assert root.steps(order=order, care={"settle_s": 60}) == []


def test_a_target_that_the_suite_does_not_measure_is_refused(root: Root) -> None:
    with pytest.raises(ConfigError, match="no dataset of suite nightly; its datasets: sums"):
        root.steps(order={"by": "target", "target": {"dataset": "words", "score": 0.8}})


def test_a_black_boxs_metric_is_a_target_too(root: Root) -> None:
    order = {"by": "target", "target": {"dataset": "accuracy", "score": 0.8}}
    asked: dict[str, Any] = {"order": order, "where": {"black_box": {"function": "my.Own"}}}
    assert root.steps(**asked) == [1]
    request = root.sent[-1]
    assert request.black_box is not None
    assert begins(root.store, request)
    made = replace(REPORT, point=request.point, suite="nightly", results=(), metrics={"accuracy": 0.9})
    commit(root.store, made)
    reached = root.round(**asked).reached
    assert reached is not None
    assert reached.score == 0.9
    assert root.steps(where={"black_box": {"function": "my.Own", "settings": {"k": 2}}}) == [3, 2, 1]


def test_a_target_belongs_to_its_order_and_to_no_other() -> None:
    with pytest.raises(ValidationError, match="needs a target"):
        Order(by="target")
    with pytest.raises(ValidationError, match="no other order"):
        Order.model_validate({"by": "step", "target": {"dataset": "sums", "score": 0.5}})
    with pytest.raises(ValidationError, match="needs a group"):
        Reevaluation(roots=("/x",), pattern="step")


def test_after_a_change_of_the_suite_only_what_has_changed_is_asked_again(root: Root) -> None:
    root.steps(root.suite_of(sums="1+1=", words="two?"))
    root.evaluate_all()
    changed = root.suite_of(sums="1+1=", words="another two?")
    assert root.steps(changed) == [3, 2, 1]
    assert {tuple(spec.name for spec in request.suite.datasets) for request in root.sent} == {("words",)}
    root.evaluate_all()
    assert root.steps(changed) == []
    longer = root.suite_of(sums="1+1=", words="another two?", more="2*1=")
    assert root.steps(longer) == [3, 2, 1]
    assert {tuple(spec.name for spec in request.suite.datasets) for request in root.sent} == {("more",)}


def test_what_a_training_has_measured_is_not_paid_for_again_and_what_it_has_no_score_of_is(root: Root) -> None:
    claimed = root.round(order={"by": "step"}).submitted
    root.store = Store(f"{root.store.url}-of-another-team")
    for request, one, score in zip(root.sent[:2], claimed, (0.9, None), strict=False):
        asked = request.model_copy(update={"ledger": None})
        report = replace(root.measured(asked, score), snapshot_digest=LedgerKey.parse(one.key).checkpoint)
        note(root.store, asked, report)
    assert root.states() == {1: "evaluated", 2: "to do", 3: "to do"}
    reached = root.round(order={"by": "target", "target": {"dataset": "sums", "score": 0.8}}).reached
    assert reached is not None
    assert (reached.saved.step, reached.score) == (1, 0.9)
    assert root.steps(fleet=FleetSpec(engine_args={"dtype": "bfloat16"})) == [3, 2, 1]
    assert root.steps() == [3, 2]
    (key,) = root.store.list("measured")
    root.store.write(key, b"torn")
    assert root.states()[1] == "to do"


def test_a_report_without_a_score_is_a_failed_try_and_no_report(root: Root) -> None:
    asked: dict[str, Any] = {"care": {"settle_s": 0, "at_once": 100, "tries": 2}}
    for _ in range(2):
        assert root.steps(**asked) == [3, 2, 1]
        root.evaluate_all(score=None)
    assert root.steps(**asked) == []
    found = root.round(only_look=True, **asked).found[0]
    assert (found.state, found.why) == ("given up", "try 2: sums has no score: the judge was away")
    ledger.forgive(root.store, ledger.find_key(root.store, found.key))
    assert root.steps(**asked) == [3]
    root.evaluate_all()
    with pytest.raises(ConfigError, match="has a report: nothing to retry"):
        ledger.forgive(root.store, ledger.find_key(root.store, found.key))


def test_data_that_is_edited_while_a_re_evaluation_waits_is_what_was_measured_and_the_rest_is_not(root: Root) -> None:
    root.steps()
    edited = root.suite_of(sums="2+2=")  # the same file
    root.evaluate_all()
    assert root.steps(edited) == []
    assert root.steps(root.suite_of(sums="1+1=")) == [3, 2, 1]
    assert root.round(only_look=True).found[0].state == "under way"


def test_of_several_datasets_only_those_without_a_score_are_asked_again(root: Root) -> None:
    both = root.suite_of(sums="1+1=", words="two?")
    root.steps(both)
    for request in root.sent:
        report = root.report(request)
        key = record_key(report.point, report.suite)
        record = json.loads(root.store.read(key))
        record["results"][1] |= {"score": None, "no_score": "the judge was away"}
        root.store.write(key, json.dumps(record).encode())
    root.sent.clear()
    assert len(ledger.without_score(ledger.all_entries(root.store))) == 3
    assert root.steps(both) == [3, 2, 1]
    assert {tuple(spec.name for spec in request.suite.datasets) for request in root.sent} == {("words",)}
    root.evaluate_all()
    assert ledger.without_score(ledger.all_entries(root.store)) == []  # under another key, and so under this one


def test_a_record_from_before_digests_were_noted_is_taken_for_what_was_claimed(root: Root) -> None:
    root.steps()
    for request in root.sent:
        report = root.report(request)
        key = record_key(report.point, report.suite)
        record = json.loads(root.store.read(key))
        del record["results"][0]["digest"]
        root.store.write(key, json.dumps(record).encode())
    assert root.steps() == []
    assert set(root.states().values()) == {"evaluated"}
    assert root.steps(root.suite_of(sums="2+2=")) == [3, 2, 1]


def test_what_is_asked_now_is_not_asked_again_by_a_changed_suite(root: Root) -> None:
    root.steps(root.suite_of(sums="1+1=", words="two?"))
    root.steps(root.suite_of(sums="1+1=", words="another two?"))
    assert [tuple(spec.name for spec in request.suite.datasets) for request in root.sent] == [("sums", "words")] * 3 + [
        ("words",)
    ] * 3


def test_other_sampling_or_other_engines_are_another_key_and_more_engines_are_not(root: Root) -> None:
    root.steps()
    root.evaluate_all()
    assert root.steps(fleet=FleetSpec(name="larger", num_engines=8, lease_timeout_s=7)) == []
    assert root.steps(fleet=FleetSpec(engine_args={"dtype": "bfloat16"})) == [3, 2, 1]
    root.evaluate_all()
    [dataset] = root.suite.datasets
    warmer = dataset.model_copy(update={"sampling": dataset.sampling.model_copy(update={"temperature": 1.0})})
    assert root.steps(root.suite.model_copy(update={"datasets": (warmer,)})) == [3, 2, 1]


def test_a_checkpoint_waits_until_it_has_settled(root: Root) -> None:
    assert root.steps(care={"settle_s": 3600}) == []
    assert root.states(care={"settle_s": 3600}) == {1: "waits", 2: "waits", 3: "waits"}


def test_a_poisoned_one_is_submitted_once_and_later_ones_go_on(root: Root) -> None:
    (root.saved / "step_2" / "model.safetensors").write_bytes(b"poison")
    assert root.steps() == [3, 2, 1]
    for request in root.sent:
        if request.point.step == 2:
            root.skip(request, "ckpt_invalid")
        else:
            root.report(request)
    assert root.steps() == []
    done = root.round(only_look=True)
    [poisoned] = [one for one in done.found if one.saved.step == 2]
    assert poisoned.state == "given up"
    assert "ckpt_invalid: as it were" in poisoned.why
    shutil.rmtree(root.saved / "step_2")
    make_checkpoint(root.saved / "step_2", seed=2)  # its trainer has mended it
    assert root.steps() == [2]


def test_a_failure_that_may_pass_is_tried_so_often_and_not_more(root: Root) -> None:
    care = {"settle_s": 0, "at_once": 100, "tries": 2}
    for number in (1, 2):
        assert root.steps(care=care) == [3, 2, 1]
        assert {request.ledger.number for request in root.sent if request.ledger} == {number}
        for request in root.sent:
            root.skip(request)
        root.sent.clear()
    assert root.steps(care=care) == []
    assert set(root.states(care=care).values()) == {"given up"}
    assert len(history(root.store, "run")) == 6  # each try has its own skip on the curve


def test_a_checkpoint_is_held_from_its_submission_on(root: Root) -> None:
    assert root.steps(limit=1) == [3]
    assert is_held(root.saved / "step_3")
    assert not is_held(root.saved / "step_2")


def test_what_prefect_does_not_take_is_open_again_at_once_and_not_held(root: Root) -> None:
    made = Survey.of(root.store, root.asked(), root.suite, FLEET)

    def refuses(request: EvalRequest) -> str:
        raise ServiceUnreachable("Prefect", "http://there", "start it")

    with pytest.raises(ServiceUnreachable):
        run_round(made, FLEET, refuses)
    assert not is_held(root.saved / "step_3")
    assert root.steps() == [3, 2, 1]
    assert [request.ledger.number for request in root.sent if request.ledger] == [2, 1, 1]


def test_a_root_that_nobody_may_write_to_is_evaluated_without_a_hold(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    (root.saved / ".pinpoint-holds").write_text("in the way")
    assert root.steps() == [3, 2, 1]


def test_a_flow_run_that_prefect_has_ended_in_the_queue_is_replaced(root: Root) -> None:
    assert root.steps(limit=1) == [3]
    root.ended.add("flow-1")
    assert root.steps(limit=1) == [2]  # not at once: its record may be on its way
    for file in (root.folder / "store" / "ledger").rglob("queued.json"):
        os.utime(file, (time.time() - 600, time.time() - 600))
    assert root.steps(limit=1) == [3]
    assert root.sent[-1].ledger is not None
    assert root.sent[-1].ledger.number == 2


def test_looking_changes_nothing_and_says_what_it_would_cost(root: Root) -> None:
    done = root.round(only_look=True, limit=2)
    assert [one.saved.step for one in done.submitted] == [3, 2]
    assert root.sent == []
    known = costs(root.store, done.submitted)
    cost = known[(root.saved / "step_3").as_uri()]
    assert (cost.requests, cost.most_tokens, cost.seconds) == (1, 256, None)
    assert cost.n_bytes == sum(file.stat().st_size for file in (root.saved / "step_3").iterdir())
    assert root.steps() == [3, 2, 1]  # and nothing was claimed


def test_only_what_may_be_submitted_is_read_and_nothing_twice(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counting(folder: Path, files: Iterable[str], point: EvalPoint) -> Manifest:
        read.append(folder.name)
        return snapshot.describe(folder, files, point)

    monkeypatch.setattr(foreign, "describe", counting)
    root.steps(limit=1)
    assert read == ["step_3"]
    root.steps()
    root.evaluate_all()
    root.steps()
    assert read == ["step_3", "step_2", "step_1"]


def test_a_checkpoint_that_a_retention_deletes_under_the_trigger_does_not_stop_the_others(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def emptied(saved: Saved, care: Care, clock: float) -> Standing:
        if saved.step == 2:
            for file in (root.saved / "step_2").iterdir():
                file.unlink()
        return look(saved, care, clock)

    monkeypatch.setattr(survey, "look", emptied)
    assert root.steps() == [3, 1]


def test_one_that_is_gone_between_the_look_and_the_reading_waits_and_the_others_go_on(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted(store: Store, saved: Saved, standing: Standing, *, read: bool) -> str | None:
        if read and saved.step == 2:
            shutil.rmtree(root.saved / "step_2")
        return checkpoint_digest(store, saved, standing, read=read)

    monkeypatch.setattr(survey, "checkpoint_digest", deleted)
    done = root.round()
    assert [one.saved.step for one in done.submitted] == [3, 1]
    [gone] = [one for one in done.found if one.saved.step == 2]
    assert (gone.state, "deleted while it was read" in gone.why) == ("waits", True)


def test_one_that_may_not_be_read_waits_and_the_others_go_on(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path, files: Iterable[str], point: EvalPoint) -> Manifest:
        if folder.name == "step_2":
            raise PermissionError(13, "Permission denied")  # as to any user but root
        return snapshot.describe(folder, files, point)

    monkeypatch.setattr(foreign, "describe", refused)
    assert root.steps() == [3, 1]
    assert root.states()[2] == "waits"


def test_one_whose_fault_shows_only_when_it_is_read_is_evaluated_for_what_it_is(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(folder: Path, files: Iterable[str], point: EvalPoint) -> Manifest:
        if folder.name == "step_2":
            raise FileDamaged("model.safetensors ends before its last tensor", subject="model.safetensors")
        return snapshot.describe(folder, files, point)

    monkeypatch.setattr(foreign, "describe", damaged)
    assert root.steps() == [3, 2, 1]
    assert root.steps() == []
    assert len({request.ledger.key for request in root.sent if request.ledger}) == 3


def test_a_dangling_link_does_not_stop_a_search_for_a_target(root: Root) -> None:
    weights = root.saved / "step_1" / "model.safetensors"
    weights.unlink()
    weights.symlink_to(root.folder / "nothing")
    order = {"by": "target", "target": {"dataset": "sums", "score": 0.8}}
    assert root.steps(order=order) == [1]
    root.skip(root.sent[0], "ckpt_invalid")
    assert root.steps(order=order) == [2]


@pytest.mark.parametrize("order", [{"by": "newest"}, {"by": "target", "target": {"dataset": "sums", "score": 0.8}}])
def test_a_dead_last_try_leaves_its_skip_in_every_order(tmp_path: Path, order: dict[str, object]) -> None:
    root, care = Root(tmp_path, steps=1), {"settle_s": 0, "at_once": 100, "tries": 1}
    assert root.steps(order=order, care=care) == [1]
    assert begins(root.store, root.sent[0])
    for file in (root.folder / "store" / "ledger").rglob("*"):
        os.utime(file, (time.time() - 600, time.time() - 600))
    assert root.states(order=order, care=care) == {1: "given up"}
    assert history(root.store, "run") == []  # who only looks changes nothing
    assert root.steps(order=order, care=care) == []
    [record] = history(root.store, "run")
    assert isinstance(record, SkippedPoint)
    assert record.reason == "crashed"


def test_what_may_be_under_way_at_once_counts_all_roots_suites_and_orders_of_the_store(root: Root) -> None:
    other, care = root.folder / "other" / "checkpoints", {"settle_s": 0, "at_once": 1}
    for step in (1, 2):
        make_checkpoint(other / f"step_{step}", seed=10 + step)
    target = {"by": "target", "target": {"dataset": "more", "score": 0.8}}
    more = root.suite_of(more="2+2=")
    assert root.steps(care=care) == [3]
    waiting = root.round(care=care, roots=(str(other),))
    assert (waiting.submitted, waiting.full) == ((), True)
    assert "are under way already" in summary(waiting)
    assert root.steps(more, care=care) == []
    assert root.steps(more, care=care, order=target) == []
    root.evaluate_all()
    going = root.round(care=care, roots=(str(other),))
    assert [one.saved.step for one in going.submitted] == [2]
    assert "under way already" not in summary(going)


def test_what_prefect_has_ended_in_the_queue_does_not_stand_in_anybodys_way_for_hours(root: Root) -> None:
    care = {"settle_s": 0, "at_once": 1}
    assert root.steps(care=care) == [3]
    root.ended.add("flow-1")
    for file in (root.folder / "store" / "ledger").rglob("*"):
        os.utime(file, (time.time() - 600, time.time() - 600))
    assert root.steps(root.suite_of(more="2+2="), care=care) == [3]


def test_a_spread_over_a_root_that_grows_takes_every_so_manieth_and_no_other(tmp_path: Path) -> None:
    root, submitted = Root(tmp_path, steps=1), []
    for step in range(2, 14):
        submitted += root.steps(order={"by": "spread", "every": 5})
        root.evaluate_all()
        make_checkpoint(root.saved / f"step_{step}", seed=step)
    assert submitted == [1, 6, 11]


def test_a_spread_is_the_same_when_the_earliest_are_deleted(tmp_path: Path) -> None:
    root, submitted = Root(tmp_path, steps=6), []
    for step in range(7, 20):
        submitted += root.steps(order={"by": "spread", "every": 5})
        root.evaluate_all()
        make_checkpoint(root.saved / f"step_{step}", seed=step)
        shutil.rmtree(root.saved / f"step_{step - 6}")
    assert submitted == [1, 6, 11, 16]


def test_a_spread_goes_on_from_what_was_evaluated_in_another_order(tmp_path: Path) -> None:
    root, order = Root(tmp_path, steps=7), {"by": "spread", "every": 5}
    assert root.steps(limit=1) == [7]
    root.evaluate_all()
    assert root.steps(order=order) == [2]
    assert root.steps(limit=1, order={"by": "step"}) == [1]
    root.evaluate_all()
    for step in range(8, 14):
        make_checkpoint(root.saved / f"step_{step}", seed=step)
    assert root.steps(order=order) == [12]


def test_a_spread_counts_from_one_that_failed_and_is_tried_again(tmp_path: Path) -> None:
    root = Root(tmp_path, steps=7)
    assert root.steps(limit=1) == [7]
    root.skip(root.sent[0])
    assert root.steps(order={"by": "spread", "every": 5}) == [2, 7]


def test_a_spread_counts_in_each_root_by_itself(tmp_path: Path) -> None:
    root, other = Root(tmp_path, steps=4), tmp_path / "other"
    for step in (1, 2, 3, 4):
        make_checkpoint(other / f"step_{step}", seed=10 + step)
    done = root.round(order={"by": "spread", "every": 3}, roots=(str(root.saved), str(other)))
    assert sorted((one.run, one.saved.step) for one in done.submitted) == [("other", 1), ("other", 4), ("run", 1), ("run", 4)]


def test_one_that_is_known_to_be_invalid_costs_nothing(root: Root) -> None:
    (root.saved / "step_2" / "model.safetensors").write_bytes(b"")
    known = costs(root.store, root.round(only_look=True).submitted)
    assert {Path(place).name: cost.requests for place, cost in known.items()} == {"step_1": 1, "step_2": 0, "step_3": 1}


def test_one_that_is_deleted_after_the_look_is_read_no_more(root: Root) -> None:
    done = root.round(only_look=True)
    shutil.rmtree(root.saved / "step_2")
    known = costs(root.store, done.submitted)
    assert {Path(place).name for place, cost in known.items() if cost.n_bytes == 0} == {"step_2"}


@pytest.mark.parametrize("name", ["record.json", "claim.json"])
def test_what_is_damaged_in_the_store_is_a_state_of_its_own_until_a_retry_and_the_others_go_on(root: Root, name: str) -> None:
    root.steps()
    damaged = root.sent[0]
    assert damaged.ledger is not None
    root.evaluate_all()
    prefix = f"ledger/{damaged.ledger.key[:25]}" if name == "claim.json" else f"runs/run/points/{damaged.point.key}"
    [path] = [path for path in root.store.list(prefix) if path.endswith(name)]
    root.store.write(path, b'{"kind": "rep')
    make_checkpoint(root.saved / "step_4", seed=4)
    assert root.steps() == [4]
    done = root.round(only_look=True)
    [one] = [one for one in done.found if one.saved.step == 3]
    assert one.state == "unreadable"
    assert path in one.why
    assert f"pinpoint retry {damaged.ledger.key}" in one.why
    assert "1 unreadable" in summary(done)
    assert costs(root.store, done.found)
    ledger.forgive(root.store, ledger.find_key(root.store, damaged.ledger.key[:20]))
    assert root.steps() == [3]
    assert root.sent[-1].ledger is not None
    assert root.sent[-1].ledger.number == 2
    root.evaluate_all()
    assert root.states()[3] == "evaluated"


def test_a_record_of_a_newer_pinpoint_is_left_alone_and_the_others_go_on(root: Root) -> None:
    root.steps(limit=1)
    point = root.sent[0].point
    root.evaluate_all()
    path = record_key(point, "nightly")
    root.store.write(path, json.dumps({**json.loads(root.store.read(path)), "format": 99}).encode())
    assert root.steps() == [2, 1]
    assert root.states()[3] == "unreadable"
