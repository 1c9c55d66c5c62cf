"""What killable processes cost: seconds an answer, graded through the pool, one by one and all at once, and by direct calls.

`python -m benchmarks.grading [ANSWERS]`. Ratios are within one run, on one machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable

from infra.grading import worker_pool
from infra.grading.pool import GraderPool
from infra.grading.work import Grading
from infra.model import DatasetSpec, Problem

CASES = {
    "exact": ("7", "7"),
    "f1": ("the cat sat on the mat", "a cat is on a mat"),
    "math": (r"\frac{{1}}{{{n}}}", r"it is \boxed{{1/{n}}}"),
}


def items(grader: str, count: int) -> list[tuple[Problem, str]]:
    answer, response = CASES[grader]
    return [
        (Problem(id=str(n), prompt="", answer=answer.format(n=n), entry={}), response.format(n=n)) for n in range(2, count + 2)
    ]


async def timed(work: Callable[[], Awaitable[object]], count: int) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) / count


async def measure(grader: str, count: int, workers: int) -> tuple[float, float, float, float]:
    """Seconds an answer: directly, one by one, all at once handed over singly, all at once in chunks."""
    spec = DatasetSpec(name="d", source="d.jsonl", grader=grader)
    todo = items(grader, count)
    direct = Grading(spec).prepare()
    direct(todo[0])
    started = time.perf_counter()
    for item in todo:
        direct(item)
    directly = (time.perf_counter() - started) / count

    async def one_by_one() -> None:
        for problem, response in todo[: count // 4]:
            await pool.grade(spec, problem, response)

    async def all_at_once() -> None:
        await asyncio.gather(*(pool.grade(spec, problem, response) for problem, response in todo))

    async with GraderPool(workers=workers) as pool:
        await asyncio.gather(*(pool.grade(spec, *todo[0]) for _ in range(4 * workers)))  # all workers are up
        single = await timed(one_by_one, count // 4)
        at_most, worker_pool.CHUNK_MAX = worker_pool.CHUNK_MAX, 1
        unchunked = await timed(all_at_once, count)
        worker_pool.CHUNK_MAX = at_most
        return directly, single, unchunked, await timed(all_at_once, count)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    print(f"{count} answers, {os.cpu_count()} cores; microseconds an answer, and times the direct call")
    print(f"{'grader':8} {'workers':>7} {'direct':>9} {'one by one':>16} {'at once, single':>18} {'at once, chunks':>18}")
    for grader in CASES:
        for workers in (1, 2):
            directly, *others = asyncio.run(measure(grader, count, workers))
            shown = "  ".join(f"{each * 1e6:8.1f} ({each / directly:5.1f}x)" for each in others)
            print(f"{grader:8} {workers:7} {directly * 1e6:9.1f}  {shown}")


if __name__ == "__main__":
    main()
