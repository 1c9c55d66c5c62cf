"""Each sample is asked for with a seed of its own, and again with the same one; without a seed none is sent."""

from __future__ import annotations

from typing import Any

from infra.attaching import attach
from infra.model import EvalPoint, LiveRequest, Problem, Sampling, Suite
from infra.running import run_samples
from tests.fakes.engine import FakeEngine
from tests.infra.examples import dataset

KEY = "engine-key"


async def seeds(**sampling: Any) -> dict[str, Any]:
    """What each request was given, by its name without the version."""
    spec = dataset(sampling=Sampling(temperature=1.0, **sampling), samples_per_prompt=3)
    problems = [Problem(id=name, prompt=name, answer="7", entry={}) for name in ("p", "q")]
    with FakeEngine(KEY) as engine:
        engine.version = "17"
        suite = Suite(name="s", datasets=(spec,))
        point = EvalPoint(run="run", step=40)
        request = LiveRequest(point=point, engines=(engine.base_url,), suite=suite, store_url="file:///store")
        await run_samples(await attach(request, KEY), spec, problems, str)
        bodies = [body for _, path, body in engine.requests if path == "/generate"]
    return {body["rid"]: body["sampling_params"].get("sampling_seed", "none") for body in bodies}


async def test_samples_have_seeds_of_their_own_that_repeat() -> None:
    first = await seeds(sampling_seed=5)
    assert len(set(first.values())) == len(first) == 6
    assert await seeds(sampling_seed=5) == first
    assert set((await seeds(sampling_seed=6)).values()).isdisjoint(first.values())


async def test_without_a_seed_none_is_sent() -> None:
    assert set((await seeds()).values()) == {"none"}
