"""Engines that hold the same weights find the same text equally likely; one that answers as it did before has not moved."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra.canary import TOKENS, TOLERANCE, agree, moved, prompt_of
from infra.errors import PinViolation
from infra.model import ProofLevel
from infra.pinning import pin
from infra.store import Store
from tests.infra.pinned import Fleet, fleet

SAME = (-1.0, -2.0, -3.0)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Engines that serve the old snapshot."""
    with fleet(tmp_path, count=3) as made:
        await pin(made.lease(made.old), made.old)
        yield made


def test_engines_agree_within_the_tolerance() -> None:
    near = tuple(value + TOLERANCE / 2.1 for value in SAME)
    agree({"one": SAME, "two": near, "three": SAME, "silent": ()}, "version")
    agree({"one": SAME, "two": near}, "version")
    bf16_step = tuple(value - 2**-4 for value in SAME)  # of a logit between 8 and 16
    agree({"one": SAME, "two": bf16_step}, "version")
    agree({"alone": SAME}, "version")


@pytest.mark.parametrize("off", [TOLERANCE * 1.1, -0.5, math.nan, -math.inf])
def test_one_engine_that_is_off_at_one_token_is_named(off: float) -> None:
    with pytest.raises(PinViolation, match="differently likely: engine two by") as caught:
        agree({"one": SAME, "two": (-1.0, -2.0 + off, -3.0), "three": SAME}, "version")
    assert caught.value.reported["one"] == "0 nats off"


def test_of_two_engines_that_differ_both_are_named() -> None:
    with pytest.raises(PinViolation, match="engine one and engine two by 0.5 nats"):
        agree({"one": SAME, "two": (-1.0, -3.0, -3.0)}, "version")


def test_whether_an_engine_has_moved_is_not_said_without_both_answers() -> None:
    assert moved(SAME, (-1.0, -2.0, math.nextafter(-3.0, 0))) is True
    assert moved(SAME, SAME) is False
    assert moved((), SAME) is moved(SAME, ()) is moved((math.nan,), (math.nan,)) is None


async def test_all_tokens_of_the_canary_are_of_the_vocabulary(three: Fleet) -> None:
    rows = max(entry.shape[0] for name, entry in three.new.manifest.tensors.items() if "embed_tokens" in name)
    prompt = prompt_of(three.new.manifest)
    assert prompt
    assert all(0 <= token < rows for token in prompt)


async def test_all_engines_say_the_same_of_the_canary(three: Fleet) -> None:
    pinned = await pin(three.lease(three.new), three.new)
    assert len({proof.canary for proof in pinned.proofs}) == 1
    assert len(pinned.proofs[0].canary) == TOKENS - 1


async def test_an_engine_that_computes_otherwise_than_its_checksums_say_is_caught_by_name(three: Fleet) -> None:
    three.engines[2].logprob = lambda token: -1.0
    with pytest.raises(PinViolation, match="differently likely: engine engine-2 by"):
        await pin(three.lease(three.new), three.new)


def like_sglang(fleet: Fleet, *, packed: bool) -> None:
    """They name no algorithm; `packed` engines lay out weights in a way that only they know."""
    for engine in fleet.engines:
        engine.says_algorithm, engine.packed = False, set(fleet.new.manifest.tensors) if packed else set()


async def test_the_proof_says_that_the_canary_has_moved(three: Fleet, tmp_path: Path) -> None:
    like_sglang(three, packed=True)
    store = Store((tmp_path / "store").as_uri())
    said = [(await pin(three.lease(at, "configuration"), at, store)).proofs for at in (three.old, three.new, three.new)]
    assert [{proof.canary_moved for proof in proofs} for proofs in said] == [{None}, {True}, {None}]


async def test_engines_whose_content_nobody_can_tell_must_answer_otherwise_than_before(three: Fleet, tmp_path: Path) -> None:
    like_sglang(three, packed=True)
    store = Store((tmp_path / "store").as_uri())
    for engine in three.engines:
        engine.logprob = lambda token: -1.0
    await pin(three.lease(three.old, "configuration"), three.old, store)
    with pytest.raises(PinViolation, match=r"engine-0 answers with run/10/.* to the last bit as engines did with run/0/"):
        await pin(three.lease(three.new, "configuration"), three.new, store)


async def test_engines_whose_content_is_proved_may_answer_as_before_and_the_log_says_so(
    three: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    like_sglang(three, packed=False)
    store = Store((tmp_path / "store").as_uri())
    for engine in three.engines:
        engine.logprob = lambda token: -1.0
    await pin(three.lease(three.old, "configuration"), three.old, store)
    with caplog.at_level(logging.WARNING):
        pinned = await pin(three.lease(three.new, "configuration"), three.new, store)
    assert {(proof.level, proof.canary_moved) for proof in pinned.proofs} == {(ProofLevel.CONTENT, False)}
    assert "finds the canary as likely as run/0/" in caplog.text


async def test_a_canary_that_is_answered_by_another_version_is_a_pin_violation(three: Fleet) -> None:
    served = three.old.version.token
    three.engines[1].scored_by = served
    with pytest.raises(PinViolation, match=f"answers the canary with version {served}, and serves run/10/"):
        await pin(three.lease(three.new), three.new)


async def test_an_engine_that_knows_no_log_probabilities_is_pinned_without_a_canary(three: Fleet) -> None:
    three.engines[0].context = 3  # so short that it refuses the text
    pinned = await pin(three.lease(three.new), three.new)
    assert [bool(proof.canary) for proof in pinned.proofs] == [False, True, True]
