"""The longest are asked first, so that none is left alone at the end; all samples of a problem go to one engine.

How long a problem's responses are is known from the run's point before; where it is not, problems are asked in file order.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import orjson

from infra.errors import StoreError
from infra.model import Problem, Sample
from infra.store import Store

logger = logging.getLogger(__name__)
Item = tuple[Problem, int]  # a problem, and which of its samples
IsDone = Callable[[str, int], bool]


def longest_first(problems: Sequence[Problem], lengths: Mapping[str, float]) -> Sequence[Problem]:
    """By known length; a problem whose length is not known counts as one of the mean, and equal ones stay in file order."""
    if not lengths:
        return problems
    mean = math.fsum(lengths.values()) / len(lengths)
    return sorted(problems, key=lambda problem: -lengths.get(problem.id, mean))


class Feed:
    """What is to be asked. A lane, which is an engine's, takes whole problems, one when it has none left."""

    def __init__(self, problems: Iterable[Problem], samples: int, lanes: int, is_done: IsDone) -> None:
        self._problems = iter(problems)
        self._samples, self._is_done = samples, is_done
        self._lanes: list[Iterator[Item]] = [iter(()) for _ in range(lanes)]

    def next(self, lane: int) -> Item | None:
        while True:
            item = next(self._lanes[lane], None)
            if item is not None:
                return item
            problem = next(self._problems, None)
            if problem is None:
                return None
            left = [(problem, index) for index in range(self._samples) if not self._is_done(problem.id, index)]
            self._lanes[lane] = iter(left)


def note_lengths(store: Store, run: str, suite: str, dataset: str, samples: Iterable[Sample]) -> None:
    """Mean completion tokens by problem, for the run's next point."""
    tokens: dict[str, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.completion_tokens:
            tokens[sample.problem_id].append(sample.completion_tokens)
    means = {id: round(sum(given) / len(given), 1) for id, given in tokens.items()}
    try:
        store.write(_key(run, suite, dataset), orjson.dumps(means))
    except (StoreError, TypeError) as error:  # TypeError: an id that no JSON can carry
        logger.warning("lengths of %s are not noted: %s", dataset, error)


def known_lengths(store: Store, run: str, suite: str, dataset: str) -> dict[str, float]:
    """What `note_lengths` noted last, or nothing."""
    try:
        noted = orjson.loads(store.read(_key(run, suite, dataset)))
        return {str(id): float(tokens) for id, tokens in noted.items()}
    except (FileNotFoundError, StoreError, ValueError, AttributeError, TypeError):
        return {}


def _key(run: str, suite: str, dataset: str) -> str:
    return f"runs/{run}/lengths/{suite}/{dataset}.json"
