"""Graders that misbehave, and some that do not; reached as a user's own function, regular expression or family would be."""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from infra.model import DatasetSpec, Problem, ReasoningGymSource
from tests.infra.examples import dataset

# Backtracks for longer than the universe lasts on HANGS_ON, and matches other text at once.
HANGING = dataset(answer_pattern=r"(?:(?:a+)+)b|7")
HANGS_ON = "a" * 60
NUMERIC = dataset(grader="numeric", answer_pattern=r"-?[\w.,]+$")
PROBLEM = Problem(id="p", prompt="3+4=", answer="7", entry={})
RAISING = dataset(grader="numeric")
UNGRADABLE = Problem(id="q", prompt="?", answer="seven", entry={})
GYM = DatasetSpec(
    name="gym", source=ReasoningGymSource(reasoning_gym="basic_arithmetic", size=2, seed=1), grader="reasoning_gym"
)


def custom(function: str, **changes: Any) -> DatasetSpec:
    """A dataset that is graded by a function of this module, or of the one that `function` names."""
    name = function if ":" in function else f"{__name__}:{function}"
    return dataset(grader={"name": "custom", "function": name, **changes})


def right(response: str, answer: str) -> bool:
    return response == answer


def half(response: str) -> float:
    return 0.5


def mapped(response: str, answer: str) -> dict[str, float]:
    return {"score": 0.25, "reward": float(response == answer)}


async def later(response: str, answer: str) -> float:
    await asyncio.sleep(0.01)
    return float(response == answer)


async def later_mapped(**given: Any) -> dict[str, bool]:
    await asyncio.sleep(0)
    return {"reward": sorted(given) == ["answer", "prompt", "response", "row"]}


def unanswered(response: str) -> None:
    return None


def wordy(response: str) -> str:
    return "1.0"


def greedy(response: str, budget: int) -> float:
    return float(budget)


def careful(response: str, *, answer: str = "", limit: int = 3) -> float:
    return float(len(response) <= limit)


NOT_A_FUNCTION = 7


def where(response: str) -> bool:
    """Whether it runs where alarms are heard: in the main thread."""
    return threading.current_thread() is threading.main_thread()


def spins_in_c(response: str) -> float:
    """Never comes back to the interpreter, so that no signal handler and no other thread runs."""
    if response == "spin":
        collections.deque(itertools.repeat(0), maxlen=0)
    return 1.0


def ignores_signals(response: str) -> float:
    if response == "spin":
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(each, signal.SIG_IGN)
        while True:
            time.sleep(1)
    return 1.0


def verifies_in_a_thread(response: str) -> float:
    """As an async harness would call math-verify: off the main thread its own time limit can't be set."""
    found: list[Any] = []

    def verify() -> None:
        from math_verify import parse

        try:
            found.append(parse(f"${response}$"))
        except ValueError as error:
            found.append(error)

    thread = threading.Thread(target=verify)
    thread.start()
    thread.join()
    if isinstance(found[0], ValueError):
        raise found[0]
    return 1.0


def prints(response: str) -> float:
    print("a grader says", response)
    sys.stdout.flush()
    os.write(1, b"and writes\n")
    return float(sys.stdin.read() == "")


def forks(response: str) -> float:
    """Both processes come back."""
    os.fork()
    return 1.0


def leaves_a_child(response: str) -> float:
    """Dies, and leaves a child that holds its pipes; `response` is the file for that child's pid."""
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    Path(response).write_text(str(child))
    os._exit(3)


def exits(response: str) -> float:
    sys.exit(5)


def dies(response: str) -> float:
    if response == "die":
        os._exit(9)
    return 1.0


def dies_as_for_memory(response: str) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def tells_its_pid(response: str) -> dict[str, float]:
    return {"reward": 1.0 / os.getpid()}


def begins_and_sleeps(response: str) -> float:
    """Says that it has begun with a file."""
    Path(response).touch()
    time.sleep(60)
    return 1.0


def sleeps(response: str) -> float:
    time.sleep(float(response))
    return 1.0


def badness(response: str) -> float:
    """How likely the kernel is to take this process when memory is short, of 1000."""
    return int(Path("/proc/self/oom_score_adj").read_text()) / 1000


def knows_a_secret(response: str) -> bool:
    return os.environ.get("OF_A_BLOCK") == "a secret of a block"


def takes_a_moment(response: str) -> float:
    time.sleep(0.2)
    return 1.0
