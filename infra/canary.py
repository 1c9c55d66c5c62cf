"""Engines that hold the same weights find the same text equally likely; one that answers as it did before a load has not moved.

The canary is asked of every engine right after its load. It looks at what an engine computes, where checksums look at what it
holds: it is all there is to tell apart engines whose layout of the weights nobody can reproduce, quantised ones for example.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Mapping, Sequence
from statistics import median

from infra.engines.client import EngineClient
from infra.errors import EngineRefused, PinViolation
from infra.model import Manifest

logger = logging.getLogger(__name__)
TOKENS = 8
STRIDE = 7919  # a prime: over any vocabulary that is no multiple of it, the tokens are spread and differ
# Nats a token. A logit in bfloat16 is known to 0.06 between 8 and 16, so engines that add up in another order differ by that.
TOLERANCE = 0.25
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
TIMEOUT_S = 60.0
NOT_KNOWN = frozenset({200, 400, 404, 422})  # 200: an answer without log-probabilities

Scores = tuple[float, ...]  # natural logarithms, one a token after the first; empty if the engine was not asked


def prompt_of(manifest: Manifest) -> tuple[int, ...]:
    """Token ids of a text without sense, the same for all snapshots of one vocabulary; empty if its size can't be told."""
    rows = [entry.shape[0] for name, entry in manifest.tensors.items() if name.endswith(EMBEDDINGS) and entry.shape]
    return tuple((STRIDE * (n + 1)) % max(rows) for n in range(TOKENS)) if rows else ()


async def listen(client: EngineClient, manifest: Manifest, version: str) -> Scores:
    """What an engine that serves `version` says of the canary; empty if it knows no such request.

    Raises EngineError; PinViolation if the answer is of another version.
    """
    prompt = prompt_of(manifest)
    if not prompt:
        return ()
    try:
        found = await client.logprobs(prompt, rid=f"canary/{version}/{uuid.uuid4().hex}", timeout_s=TIMEOUT_S)
    except EngineRefused as error:
        if error.status not in NOT_KNOWN:
            raise
        logger.warning("the canary is not compared: %s", error)
        return ()
    if set(found.weight_versions) != {version}:
        said = " then ".join(found.weight_versions)
        raise PinViolation(
            f"engine {client.base_url} answers the canary with version {said or 'none'}, and serves {version}",
            expected=version,
            reported={client.base_url: said},
        )
    return found.values


def agree(heard: Mapping[str, Scores], expected: str) -> None:
    """Raises PinViolation, with the engine and the number of nats, unless all that answered say the same within TOLERANCE."""
    answered = {name: scores for name, scores in heard.items() if scores}
    if len(answered) < 2:
        return
    middle = [_middle(at) for at in zip(*answered.values(), strict=True)]
    apart = {name: distance(scores, middle) for name, scores in answered.items()}
    # Of two engines neither is in the middle; and a sound one is at the middle, but for the tolerance, of three or more.
    if max(apart.values()) > (TOLERANCE / 2 if len(apart) == 2 else TOLERANCE):
        furthest = max(apart.values())
        wrong = " and ".join(f"engine {name}" for name, far in apart.items() if far == furthest)
        raise PinViolation(
            f"engines with {expected} find the same text differently likely: {wrong} by {furthest:.3g} nats",
            expected=expected,
            reported={name: f"{far:.3g} nats off" for name, far in apart.items()},
        )


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference at any token; infinite where only one has a number."""
    return max((_apart(a, b) for a, b in zip(one, other, strict=True)), default=0.0)


def moved(before: Scores, after: Scores) -> bool | None:
    """Whether an engine answers otherwise than with what it held before; None if that is not known."""
    return before != after if before and after and not any(map(math.isnan, before)) else None


def _middle(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return median(known) if 2 * len(known) >= len(values) else math.nan


def _apart(one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other):
        return 0.0 if math.isnan(one) and math.isnan(other) else math.inf
    return abs(one - other)
