"""Bad input is one line that names the thing and the remedy, exit code 2, and nothing half-made is left."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.end_to_end.command import OURS, assert_one_clear_line, pinpoint
from tests.services.ports import free_port
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

SUITE = "name: s\ndatasets:\n  - {name: d, source: rows.jsonl}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith(OURS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def checkpoint(home: Path) -> Path:
    build_model(0, hidden=32, layers=1).save_pretrained(home / "model")
    build_tokenizer().save_pretrained(home / "model")
    return home / "model"


@pytest.fixture
def suite(home: Path) -> Path:
    (home / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    (home / "suite.yaml").write_text(SUITE)
    return home / "suite.yaml"


def nothing_was_started(home: Path) -> bool:
    return not (home / "home" / "prefect").exists() and not list((home / "home").glob("store/**/*.json"))


def test_an_unknown_key_in_a_suite_is_named_with_the_nearest_right_one(home: Path, checkpoint: Path, suite: Path) -> None:
    suite.write_text(SUITE.replace("source", "sorce"))
    assert_one_clear_line(pinpoint("evaluate", checkpoint, "--suite", suite), "sorce", "did you mean 'source'?")
    assert nothing_was_started(home)


def test_an_unknown_key_in_a_settings_file_is_named(home: Path) -> None:
    (home / "settings.yaml").write_text("stor_url: file:///x\n")
    assert_one_clear_line(pinpoint("history", "--settings", home / "settings.yaml"), "stor_url", "'store_url'")


def test_an_unknown_variable_is_named(home: Path) -> None:
    assert_one_clear_line(pinpoint("history", PINPOINT_STORE="x"), "PINPOINT_STORE", "PINPOINT_STORE_URL")


def test_a_missing_dataset_file_is_named(home: Path, checkpoint: Path, suite: Path) -> None:
    (home / "rows.jsonl").unlink()
    assert_one_clear_line(pinpoint("evaluate", checkpoint, "--suite", suite), "rows.jsonl", "does not exist")


def test_a_malformed_row_is_named_by_its_line(home: Path, checkpoint: Path, suite: Path) -> None:
    (home / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2="\n')
    assert_one_clear_line(pinpoint("evaluate", checkpoint, "--suite", suite), "rows.jsonl, line 2", "JSON")
    assert nothing_was_started(home)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_checkpoint_is_refused_by_the_name_of_what_is_missing(
    home: Path, checkpoint: Path, suite: Path, missing: str
) -> None:
    (checkpoint / missing).unlink()
    assert_one_clear_line(pinpoint("evaluate", checkpoint, "--suite", suite), missing.partition(".")[0], str(checkpoint))
    assert nothing_was_started(home)


def test_a_checkpoint_that_is_not_there_is_named(home: Path, suite: Path) -> None:
    assert_one_clear_line(pinpoint("evaluate", home / "nowhere", "--suite", suite), "nowhere", "does not exist")


def test_a_store_that_does_not_answer_is_named(home: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    done = pinpoint(
        "history",
        "--store",
        "s3://bucket/root",
        PINPOINT_S3_ENDPOINT_URL=endpoint,
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="secret",
    )
    assert_one_clear_line(done, "s3://bucket/root", endpoint, "s3_endpoint_url")


def test_a_store_that_refuses_the_credentials_is_named(home: Path, s3: object) -> None:
    done = pinpoint("history", "--store", "s3://pinpoint/root", AWS_SECRET_ACCESS_KEY="wrong")
    assert_one_clear_line(done, "s3://pinpoint/root", "AWS_SECRET_ACCESS_KEY")


def test_a_store_of_another_kind_is_refused(home: Path) -> None:
    assert_one_clear_line(pinpoint("history", "--store", "ftp://x/y"), "ftp://x/y", "s3://bucket/prefix")


def test_a_prefect_that_does_not_answer_is_named(home: Path, checkpoint: Path, suite: Path) -> None:
    api = f"http://127.0.0.1:{free_port()}/api"
    done = pinpoint("evaluate", checkpoint, "--suite", suite, PINPOINT_PREFECT_API_URL=api)
    assert_one_clear_line(done, "Prefect does not answer", api, "pinpoint up")
    assert nothing_was_started(home)


def test_a_ray_that_does_not_answer_is_named(home: Path, checkpoint: Path, suite: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = pinpoint("evaluate", checkpoint, "--suite", suite, PINPOINT_RAY_ADDRESS=address)
    assert_one_clear_line(done, "Ray does not answer", address, "PINPOINT_RAY_ADDRESS")
    assert nothing_was_started(home)


def test_a_port_in_use_is_named(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_one_clear_line(pinpoint("up", "--port", port), port, "in use", "--port")


def test_a_run_that_is_not_there_is_named(home: Path) -> None:
    assert_one_clear_line(pinpoint("history", "nobody"), "nobody", "runs there: none")


@pytest.mark.parametrize("run", ["..", ".", "../../x", "a/b"])
def test_a_run_name_that_would_leave_its_folder_is_refused_before_anything_is_touched(home: Path, run: str) -> None:
    (home / "home" / "store" / "runs").mkdir(parents=True)
    (home / "home" / "store" / "runs" / "precious").write_text("x")
    assert_one_clear_line(pinpoint("demo", "--small", "--run", run, "--exit"), "run name")
    assert (home / "home" / "store" / "runs" / "precious").read_text() == "x"


def test_a_wrong_command_is_one_line(home: Path) -> None:
    assert_one_clear_line(pinpoint("hsitory"), "hsitory", "pinpoint --help")
