"""What a live evaluation goes through is the producer that is paused for it, whatever combination of settings says so."""

from __future__ import annotations

from itertools import product

import pytest

from infra.errors import ConfigError
from trainer_integration.evaluation_path import ANY_PRODUCER, EvaluationPath, Posture, resolve_path

STANDARD, CHOSEN, ASYNC, OWN_EVAL, OTHER = (
    "trainer.generate",
    "mine.generate",
    "trainer.FullyAsync",
    "mine.evaluate",
    "other.gen",
)
# Every combination: which posture, a rollout function chosen or not, a mode that swaps it or not, an evaluation function
# chosen or not (or set to a producer), whose gate, and whether evaluation has engines of its own.
POSTURES: tuple[Posture, ...] = ("live", "snapshot")
COMBINATIONS = list(
    product(
        POSTURES,
        (None, CHOSEN),
        (None, ASYNC),
        (None, OWN_EVAL, STANDARD, ASYNC),
        (None, ANY_PRODUCER, STANDARD, CHOSEN, ASYNC, OTHER),
        (False, True),
    )
)


def running_producer(rollout: str | None, override: str | None) -> str:
    """Written out: what fills the engines in each of the four cases."""
    return {(None, None): STANDARD, (CHOSEN, None): CHOSEN, (None, ASYNC): ASYNC, (CHOSEN, ASYNC): ASYNC}[rollout, override]


@pytest.mark.parametrize(("posture", "rollout", "override", "evaluation", "paused", "own"), COMBINATIONS)
def test_in_every_combination_the_producer_that_fills_the_engines_is_paused_or_it_is_refused(
    posture: Posture, rollout: str | None, override: str | None, evaluation: str | None, paused: str | None, own: bool
) -> None:
    def resolve() -> EvaluationPath:
        return resolve_path(
            posture,
            standard=STANDARD,
            rollout_function_path=rollout,
            override=override,
            eval_function_path=evaluation,
            paused=paused,
            own_engines=own,
        )

    producer = running_producer(rollout, override)
    if posture == "snapshot":
        if paused is not None:
            with pytest.raises(ConfigError, match="leave the gate out"):
                resolve()
        else:
            assert resolve() == EvaluationPath(producer=producer, through=evaluation, pauses=None)
    elif own:
        with pytest.raises(ConfigError, match="need a snapshot"):
            resolve()
    elif paused is None:
        with pytest.raises(ConfigError, match=f"nothing would pause {producer}"):
            resolve()
    elif paused not in (producer, ANY_PRODUCER):
        with pytest.raises(ConfigError, match=f"the gate pauses {paused}, but {producer} fills the engines"):
            resolve()
    else:
        assert resolve() == EvaluationPath(producer=producer, through=evaluation or producer, pauses=producer)


@pytest.mark.parametrize(("rollout", "override"), product((None, CHOSEN), (None, ASYNC)))
def test_by_default_the_evaluation_goes_through_what_it_pauses(rollout: str | None, override: str | None) -> None:
    path = resolve_path("live", standard=STANDARD, rollout_function_path=rollout, override=override, paused=ANY_PRODUCER)
    assert path.through == path.pauses == path.producer


def test_all_combinations_are_tried() -> None:
    assert len(COMBINATIONS) == len(set(COMBINATIONS)) == 2 * 2 * 2 * 4 * 6 * 2
