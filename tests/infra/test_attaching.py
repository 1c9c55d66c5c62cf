"""Live engines are taken at their label: all report the same one before, every response carries it, all report it after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from infra.attaching import attach, confirm_unmoved
from infra.errors import ConfigError, EngineDead, EngineRefused, PinViolation, SnapshotInvalid
from infra.model import EvalPoint, LiveRequest, Problem, ProofLevel, Suite
from infra.prompts import renderer_of
from infra.running import run_samples
from tests.fakes.engine import FakeEngine
from tests.infra.examples import dataset
from trainer_integration.tiny_trainer.model import build_tokenizer

POINT = EvalPoint(run="run", step=40)
KEY = "engine-key"
PROBLEMS = [Problem(id=f"p{n}", prompt=f"{n}+1=", answer="7", entry={}) for n in range(8)]


@pytest.fixture
def engines() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(FakeEngine(KEY)) for _ in range(2))
        first.version = second.version = "17"
        yield first, second


def request(*engines: FakeEngine, **changes: Any) -> LiveRequest:
    suite = Suite(name="suite", datasets=(dataset(),))
    urls = tuple(engine.base_url for engine in engines)
    return LiveRequest(**{"point": POINT, "engines": urls, "suite": suite, "store_url": "file:///store", **changes})


def paths(engine: FakeEngine) -> set[str]:
    return {path for _, path, _ in engine.requests}


async def test_engines_that_agree_are_proved_live_and_by_nothing_more(engines: tuple[FakeEngine, FakeEngine]) -> None:
    fleet = await attach(request(*engines), KEY)
    assert (fleet.version, fleet.token, fleet.step_of("17")) == ("17", "17", 40)
    assert {(proof.level, proof.reported_version, proof.checksum) for proof in fleet.proofs} == {(ProofLevel.LIVE, "17", "")}
    await run_samples(fleet, dataset(), PROBLEMS, str)
    await confirm_unmoved(fleet)
    assert paths(engines[0]) == paths(engines[1]) == {"/model_info", "/generate"}, "nothing is loaded, paused or flushed"
    assert KEY not in repr(fleet)


async def test_engines_that_disagree_are_each_named_with_what_they_report(engines: tuple[FakeEngine, FakeEngine]) -> None:
    engines[1].version = "16"
    with pytest.raises(PinViolation) as violation:
        await attach(request(*engines), KEY)
    names = [engine.base_url.removeprefix("http://") for engine in engines]
    assert violation.value.reported == {names[0]: "17", names[1]: "16"}
    assert f"{names[1]} reports '16'" in str(violation.value)


async def test_an_engine_without_a_label_cannot_be_measured(engines: tuple[FakeEngine, FakeEngine]) -> None:
    engines[0].version = engines[1].version = ""
    with pytest.raises(PinViolation):
        await attach(request(*engines), KEY)


async def test_a_version_that_moved_by_the_end_is_told_with_its_engine(engines: tuple[FakeEngine, FakeEngine]) -> None:
    fleet = await attach(request(*engines), KEY)
    engines[1].version = "18"
    with pytest.raises(PinViolation, match="it was '17', and .* reports '18'") as violation:
        await confirm_unmoved(fleet)
    assert violation.value.reported == {engines[1].base_url.removeprefix("http://"): "18"}


@pytest.mark.parametrize("fault", ["foreign_at", "mixed_at"])
async def test_a_response_of_another_version_is_a_violation(engines: tuple[FakeEngine, FakeEngine], fault: str) -> None:
    fleet = await attach(request(*engines), KEY)
    setattr(engines[0], fault, 3)
    with pytest.raises(PinViolation, match="pinned is 17"):
        await run_samples(fleet, dataset(), PROBLEMS, str)


async def test_what_the_engines_remember_of_prompts_is_kept_apart_for_each_evaluation(
    engines: tuple[FakeEngine, FakeEngine],
) -> None:
    for _ in range(2):
        await run_samples(await attach(request(*engines), KEY), dataset(), PROBLEMS, str)
    keys = [body["extra_key"] for engine in engines for _, path, body in engine.requests if path == "/generate"]
    assert len(keys) == 2 * len(PROBLEMS)
    assert len(set(keys)) == 2


async def test_an_engine_that_does_not_answer_or_wants_another_key_is_told(engines: tuple[FakeEngine, FakeEngine]) -> None:
    with pytest.raises(EngineRefused, match="401"):
        await attach(request(*engines), "wrong")
    engines[0].stop()
    with pytest.raises(EngineDead):
        await attach(request(*engines), KEY)


async def test_chat_is_rendered_by_the_tokenizer_that_the_trainer_names(
    engines: tuple[FakeEngine, FakeEngine], tmp_path: Path
) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "with")
    chat = dataset(apply_chat_template=True)
    fleet = await attach(request(*engines, tokenizer=str(tmp_path / "with")), KEY)
    assert renderer_of(fleet, chat)("1+1=") == "[1+1=]"
    build_tokenizer().save_pretrained(tmp_path / "without")
    with pytest.raises(SnapshotInvalid, match="has no chat template"):
        renderer_of(
            await attach(request(*engines, tokenizer=str(tmp_path / "without")), KEY), dataset(apply_chat_template=True)
        )
    with pytest.raises(ConfigError, match="give it"):
        renderer_of(await attach(request(*engines), KEY), chat)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engines": ()}, "at least 1 item"),
        ({"engines": ("10.0.0.1:30000",)}, "no http"),
        ({"engines": ("http://u:p@host:1",)}, "no user, password or query"),
        ({"engines": ("http://host:1", "http://host:1/")}, "given twice"),
        ({"api_key_from": "the key itself"}, "api_key_from"),
        ({"suite": Suite(name="s", datasets=(dataset(apply_chat_template=True),))}, "apply the chat template"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    values = {"engines": ("http://host:1",), **changes}
    with pytest.raises(ValueError, match=message):
        request(**values)
