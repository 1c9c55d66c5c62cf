"""`pinpoint check` gives a verdict: 0 and what was checked, 1 and what is wrong and how to mend it, 2 for no checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store import Store
from tests.end_to_end.command import assert_one_clear_line, pinpoint
from tests.infra.models import model
from tests.infra.spoiled_models import FAULTS
from tests.services.s3 import S3Server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PINPOINT_HOME", str(tmp_path / "home"))
    return model("sharded Qwen3", tmp_path / "model")


def test_a_valid_checkpoint_ends_with_0_and_what_was_checked(folder: Path) -> None:
    done = pinpoint("check", folder, "--chat-template")
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(folder) in done.stdout
    assert "25 tensors" in done.stdout
    assert done.stdout.rstrip().endswith("Valid.")


def test_an_invalid_one_ends_with_1_and_each_fault_with_its_remedy(folder: Path) -> None:
    for fault in FAULTS:
        if fault.name in ("lost head", "NaN at the start"):
            fault.spoil(folder)
    done = pinpoint("check", folder)
    assert done.returncode == 1, done.stdout + done.stderr
    for word in (
        "HeadMissing",
        "lm_head.weight",
        "tie_word_embeddings",
        "NotFinite",
        "model.layers.1.mlp.up_proj.weight",
        "2 faults",
    ):
        assert word in done.stdout
    assert "Traceback" not in done.stderr


def test_the_options_decide_on_chat_template_and_code(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert pinpoint("check", folder).returncode == 0
    assert "ChatTemplateMissing" in pinpoint("check", folder, "--chat-template").stdout


def test_what_is_no_checkpoint_ends_with_2_and_one_line(folder: Path) -> None:
    assert_one_clear_line(pinpoint("check", folder.parent / "nowhere"), "nowhere", "does not exist")
    assert_one_clear_line(pinpoint("check", "ftp://x/y"), "ftp://x/y", "s3://bucket/prefix")


def test_a_checkpoint_in_object_storage_is_checked_where_it_is(folder: Path, s3: S3Server) -> None:
    store = Store(f"s3://{s3.bucket}/check")
    for file in folder.iterdir():
        store.upload(file, file.name)
    done = pinpoint("check", store.url)
    assert done.returncode == 0, done.stdout + done.stderr
    store.delete("tokenizer.json")
    assert "TokenizerInvalid" in pinpoint("check", store.url).stdout
