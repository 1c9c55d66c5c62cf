"""No engine is believed: each loads the snapshot, says its version back, and proves what it holds."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra import pinning
from infra.errors import EngineDead, EngineError, EngineRefused, EngineTimeout, PinViolation
from infra.model import ProofLevel
from infra.pinning import pin
from tests.fakes.engine import FakeEngine
from tests.infra.pinned import Fleet, fleet

LOAD, CHECK = "/update_weights_from_disk", "/weights_checker"


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Two engines that serve the old snapshot."""
    with fleet(tmp_path) as made:
        await pin(made.lease(made.old), made.old)
        yield made


async def test_honest_engines_are_pinned_by_content(two: Fleet) -> None:
    pinned = await pin(two.lease(two.new), two.new)
    assert [(p.engine, p.level) for p in pinned.proofs] == [("engine-0", ProofLevel.CONTENT), ("engine-1", ProofLevel.CONTENT)]
    assert {engine.version for engine in two.engines} == {two.new.version.token}


def _lie(field: str, value: Any = True) -> Callable[[FakeEngine], None]:
    return lambda engine: setattr(engine, field, value)


LIES = {
    "label only": (_lie("label_only"), "holds other weights"),
    "no-op reload": (_lie("no_op_reload"), "reports version"),
    "stale label": (_lie("stale_label"), "reports version"),
    "partial load": (_lie("loads_only", 3), "holds other weights"),
    "nothing loaded": (_lie("loads_only", 0), "holds other weights"),
    "tensor too many": (_lie("extra_tensor"), "holds other weights"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_engine_that_serves_something_else_is_caught_by_name(two: Fleet, lie: str) -> None:
    tell, said = LIES[lie]
    if lie == "tensor too many":
        two.engines[1].tensors["vision.weight"] = "f" * 32
    tell(two.engines[1])
    with pytest.raises(PinViolation, match=f"engine engine-1 {said}") as caught:
        await pin(two.lease(two.new), two.new)
    assert "engine-1" in caught.value.reported


async def test_engines_that_all_lie_in_the_same_way_are_caught_by_the_manifest(two: Fleet) -> None:
    for engine in two.engines:
        engine.label_only = True
    with pytest.raises(PinViolation, match="holds other weights"):
        await pin(two.lease(two.new), two.new)


async def test_the_manifest_of_another_snapshot_is_not_what_the_engine_holds(two: Fleet) -> None:
    wrong = replace(two.new, manifest=replace(two.new.manifest, tensors=two.old.manifest.tensors))
    with pytest.raises(PinViolation, match="4 of 5|5 of 5"):
        await pin(two.lease(two.new), wrong)


@pytest.mark.parametrize("path", [LOAD, "/model_info", CHECK])
async def test_an_engine_that_drops_the_connection_is_dead(two: Fleet, path: str) -> None:
    two.engines[1].drops = {path}
    with pytest.raises(EngineDead, match=two.engines[1].base_url):
        await pin(two.lease(two.new), two.new)


async def test_an_engine_that_does_not_listen_is_dead(two: Fleet) -> None:
    two.engines[1].stop()
    with pytest.raises(EngineDead, match=two.engines[1].base_url):
        await pin(two.lease(two.new), two.new)


@pytest.mark.parametrize("path", [LOAD, "/model_info", CHECK])
async def test_an_engine_that_answers_no_or_nonsense_is_refused(two: Fleet, path: str) -> None:
    two.engines[0].unavailable = {path}
    with pytest.raises(EngineRefused, match="503: starting"):
        await pin(two.lease(two.new), two.new)
    two.engines[0].unavailable, two.engines[0].garbles = set(), {path}
    with pytest.raises((EngineRefused, PinViolation)):
        await pin(two.lease(two.new), two.new)


async def test_an_engine_that_says_it_did_not_load_is_refused(two: Fleet) -> None:
    shutil.rmtree(two.new.location.removeprefix("file://"))
    with pytest.raises(EngineRefused, match="is not a folder"):
        await pin(two.lease(two.new), two.new)


async def test_an_engine_that_never_answers_is_given_up_at_the_deadline(two: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "LOAD_BASE_S", 0.3)
    two.engines[1].hangs = {LOAD}
    started = time.monotonic()
    with pytest.raises(EngineTimeout, match="no answer within 0.3"):
        await pin(two.lease(two.new), two.new)
    assert time.monotonic() - started < 3


async def test_a_wrong_key_is_refused(two: Fleet) -> None:
    with pytest.raises(EngineRefused, match="401"):
        await pin(replace(two.lease(two.new), api_key="wrong"), two.new)


async def test_a_cancelled_pin_ends_at_once(two: Fleet) -> None:
    for engine in two.engines:
        engine.hangs = {LOAD}
    task = asyncio.create_task(pin(two.lease(two.new), two.new))
    await asyncio.sleep(0.1)
    task.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1


async def test_an_engine_that_failed_can_be_pinned_after_it_has_recovered(two: Fleet) -> None:
    two.engines[1].loads_only = 2
    with pytest.raises((PinViolation, EngineError)):
        await pin(two.lease(two.new), two.new)
    two.engines[1].loads_only = None
    assert (await pin(two.lease(two.new), two.new)).version == two.new.version
