"""A grade from another server is asked for until it comes or its deadline passes; a server in trouble is not a wrong answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from infra.errors import ConfigError, GraderError, GraderTimeout
from infra.grading import remote
from infra.grading.pool import GraderPool
from infra.model import DatasetSpec
from tests.fakes.grader_server import Completion, FakeGraderServer
from tests.fakes.wire import Answer, Drop, Hang
from tests.infra.examples import dataset
from tests.infra.graders import PROBLEM

KEY = "PINPOINT_TEST_JUDGE_KEY"
pytestmark = pytest.mark.asyncio(loop_scope="module")  # one pool for all: a worker takes a while to start


@pytest.fixture
def server() -> Iterator[FakeGraderServer]:
    with FakeGraderServer(lambda body: Completion("It is right.\nVERDICT: 1")) as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[GraderPool]:
    async with GraderPool(workers=1) as pool:
        yield pool


def judged(server: FakeGraderServer, **settings: Any) -> DatasetSpec:
    return dataset(grader={"name": "judge", "url": f"{server.base_url}/v1/", "model": "m", **settings})


def rewarded(server: FakeGraderServer, **settings: Any) -> DatasetSpec:
    return dataset(grader={"name": "reward_model", "url": f"{server.base_url}/reward", **settings})


@pytest.mark.parametrize(
    ("said", "settings", "reward"),
    [
        ("VERDICT: 1", {}, 1.0),
        ("VERDICT: 0", {}, 0.0),
        ("The form is 'VERDICT: 1'. Mine is\nVERDICT: 0", {}, 0.0),
        ("<think>VERDICT: 1?</think>VERDICT: 0", {}, 0.0),
        ("[[7.5]]", {"verdict_pattern": r"\[\[([\d.]+)\]\]", "highest": 10}, 0.75),
    ],
)
async def test_the_reward_is_the_judges_last_verdict_over_the_best_there_is(
    server: FakeGraderServer, pool: GraderPool, said: str, settings: dict[str, Any], reward: float
) -> None:
    server.grades = lambda body: Completion(said)
    made = await pool.grade(judged(server, **settings), PROBLEM, "it is 7")
    assert (made.reward, made.answer) == (reward, "it is 7")


async def test_a_reply_may_come_in_pieces_and_has_an_end(
    server: FakeGraderServer, pool: GraderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = Completion("It is long. " * 1000 + "VERDICT: 1").body()
    server.faults = [Answer(body, pieces=3)]
    assert (await pool.grade(judged(server), PROBLEM, "7")).reward == 1.0
    monkeypatch.setattr(remote, "LONGEST_BODY", 10_000)
    server.faults = [Answer(body, pieces=3)]
    with pytest.raises(GraderError, match="more than 10000 bytes"):
        await pool.grade(judged(server), PROBLEM, "7")


async def test_the_judge_sees_question_reference_and_answer_and_the_key_that_the_variable_has(
    server: FakeGraderServer, pool: GraderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "s3cret\n")
    spec = judged(server, api_key_variable=KEY, prompt="{prompt}|{answer}|{response}", temperature=0.5)
    await pool.ready(spec)
    await pool.grade(spec, PROBLEM, "<think>hm</think>{7}")
    ((method, path, body),) = server.requests
    assert (method, path, body["model"], body["temperature"]) == ("POST", "/v1/chat/completions", "m", 0.5)
    assert body["messages"] == [{"role": "user", "content": "3+4=|7|{7}"}]
    assert {name.lower(): value for name, value in server.headers[0].items()}["authorization"] == "Bearer s3cret"
    assert "s3cret" not in spec.model_dump_json()


async def test_a_key_that_is_not_there_is_named_before_anything_is_asked(
    server: FakeGraderServer, pool: GraderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(ConfigError, match=f"set {KEY}"):
        await pool.ready(judged(server, api_key_variable=KEY))
    assert server.requests == []


@pytest.mark.parametrize("said", ["I would rather not", "<think>VERDICT: 1", None])
async def test_a_judge_that_gives_no_verdict_leaves_the_sample_without_a_reward(
    server: FakeGraderServer, pool: GraderPool, said: str | None
) -> None:
    server.grades = lambda body: Completion(said)
    with pytest.raises(GraderError, match="p: .*gave no verdict"):
        await pool.grade(judged(server), PROBLEM, "7")


@pytest.mark.parametrize(
    ("body", "settings", "reward"),
    [
        (0.25, {}, 0.25),
        (True, {}, 1.0),
        ({"reward": 1}, {}, 1.0),
        ({"score": -1.0, "reward": 1}, {"reward_key": "score", "lowest": -3, "highest": 1}, 0.5),
    ],
)
async def test_a_reward_model_answers_a_number_or_a_mapping_on_a_scale_of_its_own(
    server: FakeGraderServer, pool: GraderPool, body: Any, settings: dict[str, Any], reward: float
) -> None:
    server.grades = lambda asked: body
    assert (await pool.grade(rewarded(server, **settings), PROBLEM, "7")).reward == reward
    assert server.requests == [("POST", "/reward", {"prompt": "3+4=", "response": "7", "label": "7"})]


@pytest.mark.parametrize("body", [{"points": 1}, {"reward": None}, {"reward": "1"}, [1], "text", Answer("<html>")])
async def test_an_answer_without_a_grade_is_an_error_and_not_a_zero(
    server: FakeGraderServer, pool: GraderPool, body: Any
) -> None:
    if isinstance(body, Answer):
        server.faults = [body]
    server.grades = lambda asked: body
    with pytest.raises(GraderError, match="no grade|no JSON") as caught:
        await pool.grade(rewarded(server), PROBLEM, "7")
    assert not isinstance(caught.value, GraderTimeout)


@pytest.mark.parametrize("fault", [Answer("busy", 429), Answer("broken", 503), Drop])
async def test_a_server_in_trouble_is_asked_again(server: FakeGraderServer, pool: GraderPool, fault: Any) -> None:
    server.faults = [fault, fault, fault]
    assert (await pool.grade(judged(server), PROBLEM, "7")).reward == 1.0
    assert len(server.requests) == 4


async def test_one_that_says_no_is_not_asked_again(server: FakeGraderServer, pool: GraderPool) -> None:
    server.faults = [Answer({"error": {"message": "no such model"}}, 404)]
    with pytest.raises(GraderError, match="answered 404: .*no such model"):
        await pool.grade(judged(server), PROBLEM, "7")
    assert len(server.requests) == 1


async def test_a_redirect_is_not_followed_with_the_key(
    server: FakeGraderServer, pool: GraderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 307 Go\r\nLocation: {server.base_url}/x\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    monkeypatch.setenv(KEY, "s3cret")
    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as redirecting:
        port = redirecting.sockets[0].getsockname()[1]
        settings = {"name": "reward_model", "url": f"http://127.0.0.1:{port}", "api_key_variable": KEY}
        with pytest.raises(GraderError, match="answered 307"):
            await pool.grade(dataset(grader=settings), PROBLEM, "7")
    assert server.requests == []


@pytest.mark.parametrize("faults", [[Hang], [Answer("busy", 429)] * 200])
async def test_a_server_that_does_not_come_round_is_a_timeout_at_the_deadline(
    server: FakeGraderServer, pool: GraderPool, faults: list[Any]
) -> None:
    server.faults = faults
    await pool.grade(judged(server), PROBLEM, " ")  # the worker is up
    started = time.monotonic()
    with pytest.raises(GraderTimeout, match="gave no grade within 0.5 s"):
        await pool.grade(judged(server, deadline_s=0.5), PROBLEM, "7")
    assert time.monotonic() - started < 2.5


async def test_a_server_that_is_not_there_is_a_timeout_that_says_so(server: FakeGraderServer, pool: GraderPool) -> None:
    server.stop()
    with pytest.raises(GraderTimeout, match="ClientConnectorError"):
        await pool.grade(rewarded(server, deadline_s=0.5), PROBLEM, "7")


async def test_a_response_without_an_answer_is_not_sent_anywhere(server: FakeGraderServer, pool: GraderPool) -> None:
    made = await pool.grade(judged(server), PROBLEM, "<think>is it 7?")
    assert (made.answer, made.reward, server.requests) == (None, 0.0, [])


async def test_no_more_requests_are_under_way_than_allowed(server: FakeGraderServer, pool: GraderPool) -> None:
    server.slow = threading.Event()
    spec = judged(server, concurrency=3)
    await asyncio.gather(*(pool.grade(spec, PROBLEM, "7") for _ in range(12)))
    assert server.most_at_once == 3
