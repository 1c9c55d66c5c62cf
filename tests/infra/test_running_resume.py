"""What was finished is not asked again, whoever was interrupted; samples of another version or model are never used."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from infra.errors import FleetUnhealthy
from infra.model import DatasetSpec, EngineRef, PinnedFleet, Problem, Sample, SampleOutcome, Sampling
from infra.running import stream_samples
from infra.running.progress import Progress
from infra.running.sample_log import SampleLog, forget_logs, log_key
from infra.running.spool import Spool, line_of
from infra.store import Store
from tests.fakes.engine import FakeEngine
from tests.infra.examples import MANIFEST, SNAPSHOT, TOKEN, dataset, proof, sample
from tests.infra.interrupted import pinned_to, problems

COUNT = 60
SPEC = dataset(samples_per_prompt=2)


@dataclass
class Ready:
    """Two engines that answer right, and count what they are asked."""

    folder: Path
    engines: tuple[FakeEngine, ...]
    rows: list[Problem] = field(default_factory=lambda: problems(COUNT))

    @property
    def urls(self) -> list[str]:
        return [engine.base_url for engine in self.engines]

    @property
    def store(self) -> Store:
        return Store((self.folder / "store").as_uri())

    def log(self) -> SampleLog:
        return SampleLog.of(self.store, pinned_to(*self.urls), "suite", SPEC, self.rows)

    def asked(self) -> Counter[str]:
        """How often each sample was: by problem and index."""
        bodies = [body for engine in self.engines for _, path, body in engine.requests if path == "/generate"]
        return Counter("/".join(body["rid"].split("/")[-3:-1]) for body in bodies)

    async def run(self, log: SampleLog | None = None, progress: Progress | None = None) -> list[Sample]:
        with Spool(self.rows, 2) as spool:
            await stream_samples(
                pinned_to(*self.urls), SPEC, self.rows, str, spool, log=log or self.log(), progress=progress or Progress()
            )
            return list(spool)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Ready]:
    with ExitStack() as stack:
        engines = tuple(stack.enter_context(FakeEngine()) for _ in range(2))
        for engine in engines:
            engine.version = TOKEN
            engine.answers = lambda prompt: str(int(prompt.split("+")[0]) + 1)
        yield Ready(tmp_path, engines)


def right(samples: list[Sample]) -> bool:
    everything = [(f"p{n}", index) for n in range(COUNT) for index in range(2)]
    return [(s.problem_id, s.index) for s in samples] == everything and {s.reward for s in samples} == {1.0}


async def test_a_try_after_one_that_was_cut_off_asks_only_for_what_was_in_flight(two: Ready) -> None:
    cut_off = threading.Event()
    answer = two.engines[0].answers

    def in_flight(prompt: str) -> str:
        if int(prompt.split("+")[0]) >= COUNT // 2:
            cut_off.wait(20)
        return answer(prompt)

    for engine in two.engines:
        engine.answers = in_flight
    progress = Progress()
    running = asyncio.create_task(two.run(progress=progress))
    while progress.done < COUNT:  # noqa: ASYNC110 - it is a number, not an event
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    cut_off.set()
    done = progress.done
    again = Progress()
    assert right(await two.run(progress=again))
    assert (again.resumed, again.done, again.total) == (done, 2 * COUNT, 2 * COUNT)
    twice = [key for key, times in two.asked().items() if times > 1]
    assert len(two.asked()) == 2 * COUNT
    assert len(twice) <= 2 * COUNT - done


async def test_a_finished_dataset_is_asked_nothing_by_a_flow_that_is_started_again(two: Ready) -> None:
    first = await two.run()
    assert sum(two.asked().values()) == 2 * COUNT
    assert await two.run() == first
    assert sum(two.asked().values()) == 2 * COUNT


@pytest.mark.slow
def test_a_process_that_is_killed_at_half_repeats_only_what_was_in_flight(two: Ready) -> None:
    """24 requests at once, of 0.2 s: what is not in a segment yet is at most what two engines finish in a moment."""
    two.rows, at_once, total = problems(200), 12, 400
    for engine in two.engines:
        engine.latency_s = 0.2
    samples = two.folder / "samples.jsonl"
    settings = {"urls": two.urls, "store_url": two.store.url, "count": 200, "at_once": at_once, "samples": str(samples)}
    command = [sys.executable, "-m", "tests.infra.interrupted", json.dumps(settings)]
    process = subprocess.Popen(command)
    try:
        while sum(engine.generated for engine in two.engines) < total // 2:
            assert process.poll() is None, "it ended before it was half done"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert not samples.exists()
    before = sum(two.asked().values())
    subprocess.run(command, check=True, timeout=120)
    found = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [(s["problem_id"], s["index"]) for s in found] == [(f"p{n}", index) for n in range(200) for index in range(2)]
    assert {(s["outcome"], s["response"] == s["answer"]) for s in found} == {("ok", True)}
    asked = two.asked()
    repeated = sum(asked.values()) - total
    assert len(asked) == total
    assert before >= total // 2
    assert repeated <= 3 * 2 * at_once, f"{repeated} of {total} were asked again"


async def test_samples_of_another_version_are_never_used_whoever_wrote_them_into_the_log(two: Ready) -> None:
    foreign = [
        sample("p0", 0, 0.0, response="0", weight_versions=("run/10/0/another",)),
        sample("p0", 1, 0.0, response="0", weight_versions=(TOKEN, "run/10/0/another")),
        sample("p1", 0, 0.0, response="0", weight_versions=()),
        sample("another problem", 0, 0.0, response="0"),
        sample("p1", 2, 0.0, response="0"),
    ]
    two.log().append(b"".join(map(line_of, foreign)))
    assert right(await two.run())
    assert sum(two.asked().values()) == 2 * COUNT


async def test_what_nobody_answered_is_asked_again_and_a_torn_line_too(two: Ready) -> None:
    kept = sample("p0", 0, response="kept")
    lost = sample("p0", 1, None, outcome=SampleOutcome.INFRA_ERROR)
    two.log().append(line_of(kept) + line_of(lost) + line_of(sample("p1", 0))[:-30])
    samples = await two.run()
    assert (samples[0], len(samples)) == (kept, 2 * COUNT)
    assert "p0/0" not in two.asked()
    assert {"p0/1", "p1/0"} <= set(two.asked())


async def test_a_store_that_takes_no_log_costs_the_log_and_no_sample(two: Ready) -> None:
    (two.folder / "store").write_text("a file, where a folder should be")
    assert right(await two.run())


async def test_a_fleet_that_answered_half_and_died_is_no_number_and_the_half_is_kept(two: Ready) -> None:
    for engine in two.engines:
        engine.drops_after = COUNT // 2
    first = await two.run()
    answered = [s for s in first if s.outcome is SampleOutcome.OK]
    assert 0 < len(answered) < 2 * COUNT
    for engine in two.engines:
        engine.drops_after, engine.generated = 0, 0
    with pytest.raises(FleetUnhealthy):
        await Ready(two.folder / "elsewhere", two.engines).run()
    for engine in two.engines:
        engine.drops_after = None
    progress = Progress()
    assert right(await two.run(progress=progress))
    assert progress.resumed == len(answered)


def changed_engine(pinned: PinnedFleet, **changes: Any) -> PinnedFleet:
    [first, *rest] = pinned.lease.engines
    return replace(pinned, lease=replace(pinned.lease, engines=(replace(first, **changes), *rest)))


def other_weights(pinned: PinnedFleet) -> PinnedFleet:
    snapshot = replace(SNAPSHOT, manifest=replace(MANIFEST, snapshot_digest="f" * 32))
    proofs = tuple(proof(engine.name, snapshot.version.token) for engine in pinned.engines)
    return PinnedFleet(lease=pinned.lease, snapshot=snapshot, proofs=proofs)


def same_but_for_the_end_of_its_digest(pinned: PinnedFleet) -> PinnedFleet:
    """The token has the first half of the digest only."""
    digest = MANIFEST.snapshot_digest[:-1] + "x"
    return replace(pinned, snapshot=replace(SNAPSHOT, manifest=replace(MANIFEST, snapshot_digest=digest)))


@pytest.mark.parametrize(
    "other",
    [
        lambda p, s, r: (other_weights(p), s, r),
        lambda p, s, r: (same_but_for_the_end_of_its_digest(p), s, r),
        lambda p, s, r: (changed_engine(p, configuration="another"), s, r),
        lambda p, s, r: (changed_engine(p, configuration="", pid=2), s, r),
        lambda p, s, r: (p, s.model_copy(update={"sampling": Sampling(temperature=0.5)}), r),
        lambda p, s, r: (p, s.model_copy(update={"answer_pattern": r"\d+"}), r),
        lambda p, s, r: (p, s.model_copy(update={"generate": "tests.infra.generates:two_turns"}), r),
        lambda p, s, r: (p, s, [replace(r[0], prompt="2+2="), *r[1:]]),
        lambda p, s, r: (p, s, [replace(r[0], answer="9"), *r[1:]]),
        lambda p, s, r: (p, s, [replace(r[0], messages=({"role": "user", "content": "?"},)), *r[1:]]),
    ],
    ids=[
        "weights",
        "end of the digest",
        "engine",
        "unknown engine",
        "sampling",
        "grading",
        "generate",
        "prompt",
        "answer",
        "messages",
    ],
)
def test_a_log_is_of_one_thing_alone(
    other: Callable[[PinnedFleet, DatasetSpec, list[Problem]], tuple[PinnedFleet, DatasetSpec, list[Problem]]],
) -> None:
    asked = (pinned_to("http://a", "http://b"), SPEC, problems(3))
    assert log_key(*asked) == log_key(pinned_to("http://c", "http://d"), SPEC, problems(3))
    assert log_key(*other(*asked)) != log_key(*asked)


def test_engines_of_which_nobody_knows_how_they_hold_weights_are_the_same_only_as_processes() -> None:
    def unknown(url: str) -> PinnedFleet:
        ref = EngineRef(name="a", base_url=url, pid=1, checkpoint_path="/x")
        return replace(pinned_to(url), lease=replace(pinned_to(url).lease, engines=(ref,)), proofs=(proof("a"),))

    assert log_key(unknown("http://a"), SPEC, []) == log_key(unknown("http://a"), SPEC, [])
    assert log_key(unknown("http://a"), SPEC, []) != log_key(unknown("http://b"), SPEC, [])


async def test_the_logs_of_a_point_that_has_its_record_are_forgotten_and_no_others(two: Ready) -> None:
    await two.run()
    two.store.write("runs/run/points/step00000010-a0/suite/record.json", b"{}")
    assert any("/log/sums/" in key for key in two.store.list("runs"))
    forget_logs(two.store, SNAPSHOT.point, "suite")
    assert list(two.store.list("runs")) == ["runs/run/points/step00000010-a0/suite/record.json"]
    forget_logs(two.store, SNAPSHOT.point, "suite")
