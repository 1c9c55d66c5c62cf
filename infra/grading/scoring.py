"""What a grader that runs in a worker is: a reward in [0, 1] for an answer to a problem, or None if it holds no answer."""

from __future__ import annotations

from collections.abc import Callable

from infra.model import Problem

Score = Callable[[Problem, str], float | None]
