"""Every error is in one tree, carries its data, names the remedy, and survives pickling whole."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from infra import errors
from infra.errors import PinpointError

EXAMPLES: tuple[PinpointError, ...] = (
    errors.PinpointError("m"),
    errors.TrainingFailed("m"),
    errors.ConfigError("m"),
    errors.UnknownKey("evry", where="file", known=["every", "run"]),
    errors.DatasetError("bad", path="/d.jsonl", line=3),
    errors.PointSkipped("run · step 1", suite="s", reason="busy", message="two\nlines", remedy="name another"),
    errors.ServiceUnreachable("Prefect", "http://x", "start it"),
    errors.DataUnreachable("m"),
    errors.PortInUse(4200, "Prefect", "--port"),
    errors.StoreError("m"),
    errors.StoreUnreachable("m"),
    errors.StoreFull("m"),
    errors.StoreStalled("m"),
    errors.StoreDenied("m"),
    errors.AlreadyExists("k"),
    errors.RecordDamaged("file:///s/record.json", "cut\nshort"),
    errors.SnapshotError("m"),
    errors.SnapshotMissing("m"),
    errors.SnapshotInvalid("m", subject="config.json"),
    errors.WeightsMissing("m", subject="s"),
    errors.PickleOnly("m", subject="s"),
    errors.IndexInvalid("m", subject="s"),
    errors.ShardMissing("m", subject="s"),
    errors.ShardUnlisted("m", subject="s"),
    errors.PathOutside("m", subject="s"),
    errors.FileDamaged("m", subject="s"),
    errors.SpansBroken("m", subject="s"),
    errors.ConfigInvalid("m", subject="s"),
    errors.RemoteCodeRefused("m", subject="s"),
    errors.TensorMissing("m", subject="s"),
    errors.ExpertMissing("m", subject="s"),
    errors.HeadMissing("m", subject="s"),
    errors.TensorUnexpected("m", subject="s"),
    errors.ShapeMismatch("m", subject="s"),
    errors.VocabMismatch("m", subject="s"),
    errors.TiedWeightsDiffer("m", subject="s"),
    errors.DtypeMismatch("m", subject="s"),
    errors.DtypeUnknown("m", subject="s"),
    errors.NotFinite("m", subject="s"),
    errors.BlackBoxFailed("m"),
    errors.AdapterInvalid("m", subject="s"),
    errors.AdapterUnmatched("m", subject="s"),
    errors.TokenizerInvalid("m", subject="s"),
    errors.TokenizerTooLarge("m", subject="s"),
    errors.EosDisagrees("m", subject="s"),
    errors.ChatTemplateMissing("m", subject="s"),
    errors.ExportFailed("m"),
    errors.StagingFailed("m", ranks={1: "OSError"}),
    errors.EngineError("m", engine="http://e"),
    errors.EngineDead("m", engine="http://e"),
    errors.EngineTimeout("m", engine="http://e"),
    errors.EngineRefused("m", engine="http://e", status=400),
    errors.FleetError("m"),
    errors.NoCapacity("m"),
    errors.FleetUnhealthy("m"),
    errors.FleetHeld("m"),
    errors.LeaseLost("m"),
    errors.PinViolation("m", expected="a", reported={"e": "b"}),
    errors.GraderError("m"),
    errors.GraderTimeout("m"),
    errors.EvalSkip("mine", "because"),
)
CLASSES = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, PinpointError)}


def test_the_examples_below_are_of_every_class() -> None:
    assert {type(error) for error in EXAMPLES} == CLASSES


def test_the_tree_at_the_head_of_the_module_draws_every_class() -> None:
    drawn = set(re.findall(r"\b[A-Z][A-Za-z]+\b", errors.__doc__ or ""))
    assert {c.__name__ for c in CLASSES} <= drawn


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_class_message_and_data(error: PinpointError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_one_line(error: PinpointError) -> None:
    assert str(error)
    assert "\n" not in str(error)


def test_an_unknown_key_gives_the_nearest_right_name() -> None:
    assert "did you mean 'every'?" in str(errors.UnknownKey("evry", where="w", known=["run", "every", "suite"]))


def test_an_unknown_key_far_from_all_lists_what_is_known() -> None:
    assert "known: every, run" in str(errors.UnknownKey("zzz", where="w", known=["run", "every"]))


def test_a_dataset_error_names_file_and_line() -> None:
    assert str(errors.DatasetError("bad", path="/d.jsonl", line=3)) == "/d.jsonl, line 3: bad"


def test_a_port_in_use_names_the_setting_that_changes_it() -> None:
    assert "--port" in str(errors.PortInUse(4200, "Prefect", "--port"))
