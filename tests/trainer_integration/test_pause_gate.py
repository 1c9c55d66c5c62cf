"""While an evaluation runs, new rollout submissions wait at a gate; those under way finish, and nothing is aborted."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from infra.concurrency import gather_all
from infra.errors import ConfigError
from tests.services.waiting import until
from trainer_integration.pause_gate import PauseGate

LONG_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Producer:
    """Submits without end from `workers` threads; while `slow` is not set, submissions that have begun are `held`."""

    def __init__(self, gate: PauseGate, workers: int, stack: ExitStack) -> None:
        self.gate = gate
        self.finished = self.held = 0
        self.stopping, self.slow = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.slow.set()
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        stack.callback(self.slow.set)
        stack.callback(self.stopping.set)
        for _ in range(workers):
            pool.submit(self.work)

    def work(self) -> None:
        while not self.stopping.is_set():
            with self.gate.submission():
                if not self.slow.is_set():
                    with self.lock:
                        self.held += 1
                    self.slow.wait(10)
                time.sleep(0.001)
                with self.lock:
                    self.finished += 1


def test_new_submissions_wait_and_go_on_when_it_reopens() -> None:
    gate = PauseGate()
    with ExitStack() as stack:
        Producer(gate, 4, stack)
        until(lambda: gate.status.passed > 20)
        with gate.closed(LONG_S, settle_s=5) as pause:
            passed = gate.status.passed
            until(lambda: gate.status.waiting == 4)
            time.sleep(0.05)
            assert (gate.status.passed, gate.status.in_flight) == (passed, 0)
        until(lambda: gate.status.passed > passed + 20)
        assert (pause.unfinished, pause.lapsed) == (0, False)


def test_submissions_under_way_finish_and_none_is_aborted() -> None:
    gate = PauseGate()
    with ExitStack() as stack:
        producer = Producer(gate, 4, stack)
        producer.slow.clear()
        until(lambda: producer.held == 4)
        threading.Timer(0.1, producer.slow.set).start()
        with gate.closed(LONG_S, settle_s=5) as pause:
            assert pause.unfinished == 0
            assert producer.finished == gate.status.passed


def test_the_wait_for_what_is_under_way_is_bounded_and_says_how_many_are_left() -> None:
    gate = PauseGate()
    with ExitStack() as stack:
        producer = Producer(gate, 3, stack)
        producer.slow.clear()
        until(lambda: producer.held == 3)
        started = time.monotonic()
        with gate.closed(LONG_S, settle_s=0.1) as pause:
            assert pause.unfinished == 3
        assert 0.1 <= time.monotonic() - started < 2


def test_it_reopens_when_what_it_was_closed_for_fails() -> None:
    gate = PauseGate()
    with pytest.raises(KeyboardInterrupt), gate.closed(LONG_S):
        raise KeyboardInterrupt
    assert gate.status.open


def test_a_gate_closed_for_longer_than_its_time_opens_by_itself_for_threads() -> None:
    gate = PauseGate()
    assert gate.close("died", 0.2)
    started = time.monotonic()
    assert gate.enter(5)
    assert 0.15 <= time.monotonic() - started < 2
    gate.leave()


async def test_a_gate_closed_for_longer_than_its_time_opens_by_itself_for_coroutines() -> None:
    gate = PauseGate()
    assert gate.close("died", 0.2)
    started = time.monotonic()
    async with asyncio.timeout(5), gate.submission():
        assert 0.15 <= time.monotonic() - started < 2


def test_no_stretch_is_longer_than_the_gates_own_bound_however_many_close_it_meanwhile() -> None:
    clock = Clock()
    gate = PauseGate(max_closed_s=100, clock=clock)
    gate.close("first", LONG_S)
    clock.now = 50
    gate.close("second", LONG_S)
    gate.close("first", 1000)
    clock.now = 99
    assert gate.status.closers == 2
    clock.now = 100
    assert gate.status.open


def test_each_of_several_closers_keeps_it_closed() -> None:
    gate = PauseGate()
    with gate.closed(LONG_S):
        with gate.closed(LONG_S):
            assert gate.status.closers == 2
        assert not gate.enter(0)
    assert gate.enter(0)


def test_a_closer_that_has_had_its_time_opens_nobody_elses_pause() -> None:
    clock = Clock()
    gate = PauseGate(clock=clock)
    gate.close("first", 10)
    clock.now = 10
    assert gate.status.open
    gate.close("second", 10)
    assert not gate.reopen("first")
    assert not gate.status.open
    assert not gate.close("first", 10), "what has ended does not close it again"
    clock.now = 20
    assert gate.status.open


def test_a_pause_says_that_it_lapsed() -> None:
    clock = Clock()
    gate = PauseGate(clock=clock)
    with gate.closed(10) as pause:
        clock.now = 10
    assert pause.lapsed


async def test_coroutines_wait_while_their_event_loop_goes_on() -> None:
    gate = PauseGate()
    entered: list[int] = []

    async def submit(number: int) -> None:
        async with gate.submission():
            entered.append(number)

    with gate.closed(LONG_S):
        tasks = [asyncio.create_task(submit(number)) for number in range(100)]
        await asyncio.sleep(0.05)
        assert (entered, gate.status.waiting) == ([], 100)
    async with asyncio.timeout(5):
        await gather_all(_done(task) for task in tasks)
    assert sorted(entered) == list(range(100))
    assert gate.status.in_flight == 0


async def test_a_coroutine_that_is_cancelled_at_the_gate_leaves_nothing_there() -> None:
    gate = PauseGate()
    with gate.closed(LONG_S):
        waiting = asyncio.create_task(gate.enter_async())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert gate.status.waiting == 0
    assert (gate.status.in_flight, gate.status.passed) == (0, 0)


async def test_one_gate_serves_threads_and_coroutines_and_is_closed_from_another_thread() -> None:
    gate = PauseGate()
    with ExitStack() as stack:
        Producer(gate, 2, stack)
        closed, reopen = threading.Event(), threading.Event()

        def drive() -> None:
            with gate.closed(LONG_S, settle_s=5):
                closed.set()
                reopen.wait(5)

        driver = asyncio.create_task(asyncio.to_thread(drive))
        await asyncio.to_thread(closed.wait, 5)
        entering = asyncio.create_task(gate.enter_async())
        await _until(lambda: gate.status.waiting == 3)
        reopen.set()
        async with asyncio.timeout(5):
            await entering
            await driver
        gate.leave()


def test_one_that_is_stopped_need_not_wait_at_the_gate_for_long() -> None:
    gate = PauseGate()
    with gate.closed(LONG_S):
        started = time.monotonic()
        assert not gate.enter(0.05)
        assert time.monotonic() - started < 1


def test_an_open_gate_costs_next_to_nothing() -> None:
    gate = PauseGate()
    count, started = 10_000, time.perf_counter()
    for _ in range(count):
        with gate.submission():
            pass
    assert (time.perf_counter() - started) / count < 50e-6  # seen: 1.5e-6 on one core


@pytest.mark.parametrize("act", ["close", "enter"])
def test_a_fork_is_told_that_its_copy_pauses_nothing(act: str) -> None:
    gate = PauseGate()
    assert gate.enter()
    gate.leave()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            gate.close("in the child", LONG_S) if act == "close" else gate.enter()
        except ConfigError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert "this is a fork with a copy that pauses nothing" in said.read()
    os.waitpid(pid, 0)


async def _done(task: asyncio.Task[None]) -> None:
    await task


async def _until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not come true")
