"""What a live evaluation goes through is the producer that is paused for it, whatever combination of settings says so.

A default that is resolved before an override (a mode that swaps the rollout function) evaluates beside the producer that it
pauses, or pauses one that it does not evaluate through. So all is resolved here, at once, overrides first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.errors import ConfigError

Posture = Literal["live", "snapshot"]
ANY_PRODUCER = ""  # of a gate that does not say whose it is: the trainer has one producer


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPath:
    """`producer` fills the trainer's engines; an evaluation goes `through` a function, None for Pinpoint's own flow alone.

    `pauses` is the producer whose gate is closed meanwhile, None if none has to be.
    """

    producer: str
    through: str | None
    pauses: str | None


def resolve_path(
    posture: Posture,
    *,
    standard: str,
    rollout_function_path: str | None = None,
    override: str | None = None,
    eval_function_path: str | None = None,
    paused: str | None = None,
    own_engines: bool = False,
) -> EvaluationPath:
    """`standard` is the trainer's own default, `override` the producer that a mode (fully asynchronous) puts in its place.

    `paused` is the producer behind the gate that was given, ANY_PRODUCER if it does not say, None without a gate.
    `own_engines`: evaluation has engines of its own, apart from the trainer's.
    Raises ConfigError for a combination in which the engines' producer would go on while they are evaluated.
    """
    producer = override or rollout_function_path or standard
    if posture == "snapshot":
        if paused is not None:
            raise ConfigError("a snapshot is evaluated while training goes on: leave the gate out, or evaluate live")
        return EvaluationPath(producer=producer, through=eval_function_path, pauses=None)
    if own_engines:
        raise ConfigError("a live evaluation is on the trainer's own engines: engines apart from them need a snapshot")
    if paused is None:
        raise ConfigError(f"nothing would pause {producer}, which fills the engines while they are evaluated: give its gate")
    if paused not in (ANY_PRODUCER, producer):
        raise ConfigError(
            f"the gate pauses {paused}, but {producer} fills the engines that are evaluated: put the gate in front of its "
            "submissions"
        )
    return EvaluationPath(producer=producer, through=eval_function_path or producer, pauses=producer)
