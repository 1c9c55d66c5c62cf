"""Prefect on PostgreSQL, with authentication: points are evaluated as ever, nobody else is let in, no secret is written."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import httpx
import pytest
from prefect.blocks.system import Secret
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows.asked import delivery_of, submit_and_wait
from flows.secrets_block import load_secrets
from flows.stack import Stack, local_runner, local_stack
from infra.config import load_settings
from infra.model import DatasetSpec, EvalPoint, EvalReport, EvalRequest, Sampling, SkippedPoint, SnapshotSource, Suite
from infra.records import find, now
from infra.store import Store
from tests.end_to_end.command import OURS, PINPOINT
from tests.end_to_end.points import wait_until
from tests.infra.graders import custom
from tests.services.ports import free_port
from tests.services.postgres import PASSWORD, Postgres, postgres
from tests.services.stack import FLEET
from tests.services.waiting import patiently
from trainer_integration.outbox import DEPLOYMENT, Delivery
from trainer_integration.prefect_api import PrefectApi, authorization

SECRET = "admin:only for those who know"
OF_BLOCK = {"OF_A_BLOCK": "a secret of a block", "WANDB_API_KEY": "a key of a block"}
RUNS = "SELECT count(*) FROM flow_run WHERE name = {name!r} AND state_name = {state!r}"


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(scope="module")
def stack(database: Postgres) -> Iterator[Stack]:
    before = dict(os.environ)
    home = Path(tempfile.mkdtemp(prefix="pinpoint-test-"))
    for name in [name for name in before if name.startswith(OURS)]:  # what points at the stack that other tests share
        del os.environ[name]
    os.environ |= {
        "PINPOINT_HOME": str(home),
        "PINPOINT_STAGING_DIR": str(home / "staging"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.url,
        "PREFECT_SERVER_API_AUTH_STRING": SECRET,
    }
    try:
        with local_stack(load_settings(), port=free_port(), runner=False) as running:
            save_block(running, "pinpoint-secrets", OF_BLOCK)
            os.environ["PINPOINT_SECRETS_BLOCK"] = "pinpoint-secrets"
            with local_runner(running):
                yield running
    finally:
        os.environ.clear()
        os.environ |= before
        shutil.rmtree(home, ignore_errors=True)


def request_of(home: Path, model: Path, step: int) -> EvalRequest:
    rows = home / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{i:02d}+01=", "answer": "{i + 1}"}}\n' for i in range(8)))
    dataset = DatasetSpec(name="rows", source=str(rows), sampling=Sampling(max_new_tokens=4))
    return EvalRequest(
        point=EvalPoint(run="on-postgres", step=step),
        source=SnapshotSource(path=str(model), staged=False),
        suite=Suite(name="suite", datasets=(dataset,)),
        fleet=FLEET.model_copy(update={"name": "on-postgres", "num_engines": 1}),
        store_url=load_settings().store,
    )


def known_to(stack: Stack) -> AbstractContextManager[object]:
    """Prefect's own client in this process, which read its settings before there was the server."""
    return temporary_settings({PREFECT_API_URL: stack.prefect_api_url, PREFECT_API_AUTH_STRING: SECRET})


def save_block(stack: Stack, name: str, value: object) -> None:
    with known_to(stack):
        asyncio.run(Secret(value=value).asave(name, overwrite=True))


def in_database(database: Postgres, name: str, state: str) -> bool:
    return database.asked(RUNS.format(name=name, state=state)) == "1"


def test_a_point_is_evaluated_and_its_history_is_in_the_database(stack: Stack, database: Postgres, model: Path) -> None:
    settings = load_settings()
    request = request_of(settings.home, model, 20)
    assert submit_and_wait(request, delivery_of(request), settings, stack.prefect_api_url)
    assert isinstance(find(Store(settings.store), request.point, "suite"), EvalReport)
    wait_until(lambda: in_database(database, request.point.name, "Completed"), 60)


def test_a_skip_of_the_trainer_is_delivered_with_its_password(stack: Stack, database: Postgres, model: Path) -> None:
    request = request_of(load_settings().home, model, 40)
    skip = SkippedPoint(
        point=request.point, suite="suite", reason="busy", message="two are in flight", export_time_seconds=0, finished_at=now()
    )
    with closing(PrefectApi(stack.prefect_api_url)) as api:
        patiently(lambda: api.create_flow_run(Delivery.of(request, DEPLOYMENT, skip)))
    wait_until(lambda: in_database(database, request.point.name, "Skipped"), 60)


def test_nobody_is_let_in_without_the_password(stack: Stack) -> None:
    filter_url = f"{stack.prefect_api_url}/flow_runs/filter"
    assert httpx.post(filter_url, json={}, timeout=30).status_code == httpx.codes.UNAUTHORIZED
    wrong = {"Authorization": "Basic d3Jvbmc6d3Jvbmc="}
    assert httpx.post(filter_url, json={}, timeout=30, headers=wrong).status_code == httpx.codes.UNAUTHORIZED
    assert httpx.post(filter_url, json={}, timeout=30, headers=authorization()).status_code == httpx.codes.OK


def test_a_command_without_the_password_says_which_variable_has_it(stack: Stack, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "AUTH_STRING" not in name}
    environment |= {"PINPOINT_PREFECT_API_URL": stack.prefect_api_url, "PINPOINT_HOME": str(tmp_path)}
    done = subprocess.run([PINPOINT, "up"], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "PREFECT_API_AUTH_STRING" in done.stderr
    assert "401" in done.stderr


def test_secrets_of_a_block_reach_flows_and_their_graders(stack: Stack, database: Postgres, model: Path) -> None:
    settings = load_settings()
    asked = request_of(settings.home, model, 60)
    graded = asked.suite.datasets[0].model_copy(update={"grader": custom("knows_a_secret").grader})
    request = asked.model_copy(update={"suite": Suite(name="secrets", datasets=(graded,))})
    assert submit_and_wait(request, delivery_of(request), settings, stack.prefect_api_url)
    report = find(Store(settings.store), request.point, "secrets")
    assert isinstance(report, EvalReport), report
    assert report.results[0].score is not None
    assert report.results[0].score.mean == 1.0


def test_what_the_runner_has_itself_stays(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "of the runner itself")
    monkeypatch.delenv("OF_A_BLOCK", raising=False)
    with known_to(stack):
        assert asyncio.run(load_secrets("pinpoint-secrets")) == ["OF_A_BLOCK"]
    assert (os.environ.pop("OF_A_BLOCK"), os.environ["WANDB_API_KEY"]) == ("a secret of a block", "of the runner itself")


@pytest.mark.parametrize(
    ("value", "why"), [(None, "there is no Secret block"), ("plain text", "is no mapping"), ({"A B": "x"}, "is no mapping")]
)
def test_a_runner_whose_secrets_can_not_be_had_says_so_and_tells_none(stack: Stack, value: object, why: str) -> None:
    environment = os.environ | {"PREFECT_API_URL": stack.prefect_api_url, "PINPOINT_SECRETS_BLOCK": "unusable"}
    if value is not None:
        save_block(stack, "unusable", value)
    command = [sys.executable, "-m", "flows.serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert "plain text" not in done.stderr


def test_a_runner_without_the_password_says_which_variable_has_it(stack: Stack) -> None:
    environment = {name: value for name, value in os.environ.items() if "AUTH_STRING" not in name}
    environment |= {"PREFECT_API_URL": stack.prefect_api_url, "PINPOINT_SECRETS_BLOCK": "pinpoint-secrets"}
    command = [sys.executable, "-m", "flows.serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "answers 401: set PREFECT_API_AUTH_STRING" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_secret_is_in_a_log_a_record_or_the_database(stack: Stack, database: Postgres) -> None:
    """Runs after the others, whose traces it looks at."""
    encoded = authorization()["Authorization"].split()[1]
    secrets = [SECRET, SECRET.split(":")[1], encoded, database.url, PASSWORD, *OF_BLOCK.values()]
    logs = "\n".join(path.read_text(errors="replace") for path in stack.logs.iterdir())
    store = Store(load_settings().store)
    records = "\n".join(store.read(key).decode(errors="replace") for key in store.list(""))
    rows = database.dumped()
    assert all("on-postgres" in told for told in (records, rows))
    assert "pinpoint-secrets" in rows
    assert [secret for secret in secrets if secret in logs + records + rows] == []
