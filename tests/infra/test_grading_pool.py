"""A grader can hang, crash or raise, and only its own sample is the worse for it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from infra.concurrency import gather_all
from infra.errors import ConfigError, GraderError, GraderTimeout
from infra.grading import worker_pool as pools
from infra.grading.answers import Grade
from infra.grading.pool import GraderPool
from infra.grading.worker_process import WorkerProcess
from infra.model import DatasetSpec, Problem
from tests.infra.examples import dataset
from tests.infra.graders import HANGING, HANGS_ON, NUMERIC, PROBLEM, RAISING, UNGRADABLE, custom
from tests.services.waiting import until

DEADLINE_S = 0.5
LATE_S = 2.0
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[GraderPool]:
    async with GraderPool(workers=2, deadline_s=DEADLINE_S) as pool:
        yield pool
    assert workers() == set()


def workers() -> set[int]:
    """Processes that grade for this one."""
    return {child.pid for child in psutil.Process().children() if any("infra.grading.worker" in word for word in words(child))}


def words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return []


def live_pids() -> set[int]:
    return {each.pid for each in psutil.process_iter(["status"]) if each.info["status"] != psutil.STATUS_ZOMBIE}


async def right_again(pool: GraderPool) -> bool:
    return (await pool.grade(NUMERIC, PROBLEM, "7")).reward == 1.0


@pytest.mark.parametrize(
    ("spec", "response"),
    [
        (HANGING, HANGS_ON),
        (custom("spins_in_c"), "spin"),
        (custom("ignores_signals"), "spin"),
        (dataset(grader="math"), r"$\binom{10^9}{5\cdot 10^8}$"),
    ],
    ids=["regex", "in_c", "ignores_signals", "math_verify"],
)
async def test_what_does_not_end_is_killed_at_its_deadline_and_the_others_are_graded(
    pool: GraderPool, spec: DatasetSpec, response: str
) -> None:
    await pool.ready(spec)
    await right_again(pool)
    started = time.monotonic()
    hanging = asyncio.create_task(pool.grade(spec, PROBLEM, response))
    others = await gather_all(pool.grade(NUMERIC, PROBLEM, "7") for _ in range(20))
    assert [given.reward for given in others] == [1.0] * 20
    with pytest.raises(GraderTimeout, match="p: no grade within 0.5 s"):
        await hanging
    assert time.monotonic() - started < DEADLINE_S + LATE_S
    assert await right_again(pool)


@pytest.mark.slow
async def test_math_verify_off_the_main_thread_is_an_error_and_does_not_hang() -> None:
    async with GraderPool(deadline_s=30) as pool:
        with pytest.raises(GraderError, match="doesn't support threaded environment"):
            await pool.grade(custom("verifies_in_a_thread"), PROBLEM, "7")
        assert await right_again(pool)


@pytest.mark.slow
async def test_the_deadline_holds_while_every_core_is_busy(pool: GraderPool) -> None:
    spinning = custom("spins_in_c")
    await pool.ready(spinning)
    busy = [await asyncio.create_subprocess_exec("sh", "-c", "while :; do :; done") for _ in range(os.cpu_count() or 2)]
    try:
        started = time.monotonic()
        with pytest.raises(GraderTimeout):
            await pool.grade(spinning, PROBLEM, "spin")
        assert time.monotonic() - started < DEADLINE_S + LATE_S
    finally:
        for process in busy:
            process.kill()
            await process.wait()


@pytest.mark.slow
async def test_one_worker_is_replaced_as_often_as_it_has_to_be_killed() -> None:
    before = workers()
    async with GraderPool(workers=1, deadline_s=1.0) as pool:
        seen = set()
        for _ in range(3):
            given = await pool.grade(custom("tells_its_pid"), PROBLEM, "x")
            seen.add(given.reward)
            with pytest.raises(GraderTimeout):
                await pool.grade(custom("spins_in_c"), PROBLEM, "spin")
            await asyncio.sleep(0)
        assert len(seen) == 3
    assert workers() <= before


@pytest.mark.slow
async def test_what_was_handed_over_with_a_sample_that_hangs_is_graded_by_the_next_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "CHUNK_S", 1000.0)
    async with GraderPool(workers=1, deadline_s=DEADLINE_S) as pool:
        spec = custom("spins_in_c")
        await pool.ready(spec)
        responses = ["a", "spin", "b", "c", "spin", "d"]
        given = await asyncio.gather(*(pool.grade(spec, PROBLEM, each) for each in responses), return_exceptions=True)
    kinds = [each.reward if isinstance(each, Grade) else type(each) for each in given]
    assert kinds == [1.0, GraderTimeout, 1.0, 1.0, GraderTimeout, 1.0]


@pytest.mark.parametrize(
    ("function", "response", "said"),
    [
        ("dies", "die", "ended with code 9"),
        ("exits", "x", "ended with code 5"),
        ("dies_as_for_memory", "x", "was killed by SIGKILL"),
    ],
)
async def test_a_grader_that_ends_its_process_is_an_error_of_its_sample_alone(
    pool: GraderPool, function: str, response: str, said: str
) -> None:
    others = [pool.grade(custom("dies"), PROBLEM, "7") for _ in range(5)]
    dying = pool.grade(custom(function), PROBLEM, response)
    given = await asyncio.gather(dying, *others, return_exceptions=True)
    assert isinstance(given[0], GraderError)
    assert not isinstance(given[0], GraderTimeout)
    assert str(given[0]) == f"p: the grader's process {said}"
    assert [each.reward for each in given[1:] if isinstance(each, Grade)] == [1.0] * 5


async def test_a_worker_that_is_killed_from_outside_is_an_error_of_its_sample_alone(tmp_path: Path) -> None:
    before, begun = workers(), tmp_path / "begun"
    async with GraderPool(workers=1, deadline_s=60) as pool:
        hanging = asyncio.create_task(pool.grade(custom("begins_and_sleeps"), PROBLEM, str(begun)))
        await asyncio.to_thread(until, begun.exists)
        for pid in workers() - before:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(GraderError, match="was killed by SIGKILL"):
            await hanging
        assert await right_again(pool)


async def test_a_worker_that_is_killed_while_it_has_nothing_to_do_costs_no_sample(pool: GraderPool) -> None:
    await right_again(pool)
    killed = workers()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(until, lambda: not killed & workers())
    assert killed
    assert [await right_again(pool) for _ in range(4)] == [True] * 4


async def test_a_child_that_a_dead_grader_left_is_killed_too(pool: GraderPool, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(GraderError, match="ended with code 3"):
        await pool.grade(custom("leaves_a_child"), PROBLEM, str(file))
    child = int(file.read_text())
    await asyncio.to_thread(until, lambda: child not in live_pids())


async def test_a_grader_that_forks_is_answered_once(pool: GraderPool) -> None:
    for _ in range(3):
        assert (await pool.grade(custom("forks"), PROBLEM, "7")).reward == 1.0
    assert (await pool.grade(custom("half"), PROBLEM, "7")).reward == 0.5


async def test_what_a_grader_prints_is_no_grade_and_it_has_nothing_to_read(capfd: pytest.CaptureFixture[str]) -> None:
    async with GraderPool() as pool:
        assert (await pool.grade(custom("prints"), PROBLEM, "7")).reward == 1.0
    written = capfd.readouterr()
    assert (written.out, "a grader says 7" in written.err, "and writes" in written.err) == ("", True, True)


async def test_a_raising_grader_is_a_grader_error_that_names_problem_and_cause(pool: GraderPool) -> None:
    with pytest.raises(GraderError, match="q: ValueError") as caught:
        await pool.grade(RAISING, UNGRADABLE, "7")
    assert not isinstance(caught.value, GraderTimeout)
    assert await right_again(pool)


async def test_graders_run_in_the_main_thread_and_are_the_first_to_go_when_memory_is_short(pool: GraderPool) -> None:
    assert (await pool.grade(custom("where"), PROBLEM, "7")).reward == 1.0
    assert (await pool.grade(custom("badness"), PROBLEM, "7")).reward == 1.0


async def test_megabytes_and_lone_surrogates_reach_the_grader(pool: GraderPool) -> None:
    response = "\ud800\0" + "x" * 2_000_000 + " 7"
    assert (await pool.grade(dataset(grader="numeric", answer_pattern=r"\d+"), PROBLEM, response)).reward == 1.0
    assert (await pool.grade(dataset(grader="exact"), PROBLEM, response)).reward == 0.0


async def test_a_row_that_no_other_process_can_be_given_is_an_error_of_its_sample(pool: GraderPool) -> None:
    with pytest.raises(GraderError, match="can't be handed to a worker"):
        await pool.grade(NUMERIC, Problem(id="p", prompt="", answer="7", entry={"f": lambda: 1}), "7")
    assert await right_again(pool)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("no_module_of_this_name:f", "No module named 'no_module_of_this_name'"),
        ("nothing", "has no attribute 'nothing'"),
        ("NOT_A_FUNCTION", "can't be called"),
        ("greedy", "has a parameter 'budget'; a grader is given prompt, response, answer, row"),
    ],
)
async def test_a_function_that_cannot_grade_is_refused_before_anything_is_asked(
    pool: GraderPool, function: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await pool.ready(custom(function))
    with pytest.raises(GraderError, match=said):
        await pool.grade(custom(function), PROBLEM, "7")


@pytest.mark.slow
async def test_a_grader_that_takes_too_long_to_load_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with GraderPool(deadline_s=DEADLINE_S) as pool:
        monkeypatch.setattr(pool._workers, "load_deadline_s", 1.0)
        with pytest.raises(ConfigError, match="was not ready within 1 s"):
            await pool.ready(custom("slow_to_import:f"))


async def test_a_grader_that_kills_its_process_on_import_is_given_up_at_the_second_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dies_on_import.py").write_text("import os\nos._exit(4)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with GraderPool(workers=1) as fresh:
        await right_again(fresh)
        with pytest.raises(ConfigError, match="the grader's process ended with code 4 before it was ready"):
            await fresh.ready(custom("dies_on_import:f"))
        assert await right_again(fresh)


@pytest.mark.slow
async def test_importing_does_not_count_as_grading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "imports_for_long.py").write_text("import time\ntime.sleep(1)\ndef f(response): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with GraderPool(deadline_s=DEADLINE_S) as pool:
        assert (await pool.grade(custom("imports_for_long:f"), PROBLEM, "7")).reward == 1.0


async def test_a_pool_whose_own_code_fails_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> WorkerProcess:
        raise ZeroDivisionError("a bug")

    async with GraderPool(workers=1) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(WorkerProcess, "start", broken)
            given = await asyncio.gather(*(pool.grade(NUMERIC, PROBLEM, "7") for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in given] == [GraderError] * 3
        assert await right_again(pool)


async def test_a_machine_that_can_start_no_process_is_an_error_of_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with GraderPool(workers=1) as pool:
        with pytest.raises(GraderError, match="no worker can be started"):
            await pool.grade(NUMERIC, PROBLEM, "7")


async def test_a_caller_that_goes_away_leaves_the_pool_working(pool: GraderPool) -> None:
    left = [asyncio.create_task(pool.grade(custom("sleeps"), PROBLEM, "0.2")) for _ in range(8)]
    await asyncio.sleep(0.05)
    for task in left:
        task.cancel()
    assert await right_again(pool)


async def test_closing_the_pool_ends_what_is_under_way_and_every_process() -> None:
    before = workers()
    async with GraderPool(deadline_s=30) as pool:
        under_way = [asyncio.create_task(pool.grade(custom("sleeps"), PROBLEM, "30")) for _ in range(6)]
        await asyncio.to_thread(until, lambda: workers() - before)
    given = await asyncio.gather(*under_way, return_exceptions=True)
    assert {str(each) for each in given} == {"p: the pool was closed"}
    assert workers() <= before


@pytest.mark.slow
async def test_workers_do_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom infra.grading.pool import GraderPool\nfrom tests.infra.graders import PROBLEM, custom\n"
        "async def main():\n async with GraderPool() as pool:\n  await pool.ready(custom('sleeps'))\n"
        "  print('up', flush=True)\n"
        "  await pool.grade(custom('spins_in_c'), PROBLEM, 'spin')\nasyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    await process.wait()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert (len(gone), alive) == (len(children), [])


@pytest.mark.parametrize(("patience_s", "most"), [(60.0, 1), (0.01, 4)])
async def test_another_worker_is_started_only_when_something_has_waited(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, most: int
) -> None:
    monkeypatch.setattr(pools, "PATIENCE_S", patience_s)
    started = workers()
    async with GraderPool(workers=4, deadline_s=10.0) as pool:
        await pool.ready(custom("takes_a_moment"))
        grading = gather_all(pool.grade(custom("takes_a_moment"), PROBLEM, "7") for _ in range(16))
        assert [grade.reward for grade in await grading] == [1.0] * 16
        assert len(workers() - started) == most
