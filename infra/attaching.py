"""Live engines are taken at their label: all report the same one before, every response carries it, all report it after.

Nothing is loaded, paused, flushed or exported. That no weights moved in between without their label moving is the trainer's
to see to: it waits, and it labels what it loads.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping

from infra.concurrency import gather_all
from infra.engines.client import EngineClient
from infra.errors import PinViolation
from infra.model import EngineProof, LiveEngine, LiveFleet, LiveRequest, ProofLevel

logger = logging.getLogger(__name__)
UNLABELLED = frozenset({"", "default"})  # SGLang says `default` until it is told a version


async def attach(request: LiveRequest, api_key: str) -> LiveFleet:
    """Reads the label of every engine.

    Raises:
        PinViolation: engines that report different labels, or none; says which engine reported what.
        EngineError: an engine that does not answer.
    """
    engines = tuple(LiveEngine.at(url) for url in request.engines)
    reported = await _reported(engines, api_key)
    labels = set(reported.values())
    if labels & UNLABELLED:
        raise PinViolation(
            f"live engines carry no label of the trainer's ({_said(reported)}): pass weight_version with every update",
            expected="a label",
            reported=reported,
        )
    if len(labels) != 1:
        raise PinViolation(f"live engines do not agree on one version: {_said(reported)}", expected="", reported=reported)
    (version,) = labels
    logger.info("%s: %d live engines report version %s", request.point.name, len(engines), version)
    return LiveFleet(
        point=request.point,
        engines=engines,
        version=version,
        proofs=tuple(_proof(name, label) for name, label in reported.items()),
        tokenizer=request.tokenizer,
        cache_key=f"pinpoint/{request.point.run}/{request.point.key}/{uuid.uuid4().hex}",
        api_key=api_key,
    )


async def confirm_unmoved(fleet: LiveFleet) -> None:
    """Reads the labels again. Raises PinViolation naming each engine that reports another one now, EngineError."""
    reported = await _reported(fleet.engines, fleet.api_key)
    moved = {name: label for name, label in reported.items() if label != fleet.version}
    if moved:
        message = f"the version moved while it was measured: it was {fleet.version!r}, and {_said(moved)}"
        raise PinViolation(message, expected=fleet.version, reported=moved)


def _said(reported: Mapping[str, str]) -> str:
    return ", ".join(f"{name} reports {label!r}" for name, label in reported.items())


async def _reported(engines: tuple[LiveEngine, ...], api_key: str) -> dict[str, str]:
    labels = await gather_all(_label(engine, api_key) for engine in engines)
    return {engine.name: label for engine, label in zip(engines, labels, strict=True)}


async def _label(engine: LiveEngine, api_key: str) -> str:
    async with EngineClient(engine.base_url, api_key) as client:
        return await client.weight_version()


def _proof(engine: str, label: str) -> EngineProof:
    return EngineProof(engine=engine, reported_version=label, checksum="", level=ProofLevel.LIVE, load_seconds=0.0)
