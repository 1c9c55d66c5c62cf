"""A LoRA adapter is measured merged into its base; the base can't be measured in its place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import sample_files
from infra.digests import digest_file
from infra.errors import PinViolation
from infra.fleet import lease as leasing
from infra.model import BaseModelRef, EvalPoint, EvalReport, EvalRequest, FleetSpec, SkippedPoint, SnapshotRef
from infra.pinning import pin
from infra.snapshot import assemble, describe, validate
from infra.store import path_of
from infra.validation.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from tests.end_to_end.points import Points, wait_until
from tests.infra.adapters import make_adapter
from tests.services.stack import RunningStack


def adapter_request(points: Points, base: Path, step: int) -> EvalRequest:
    """As a trainer stages it: the adapter alone."""
    request = points.request(step)
    folder = Path(request.source.path)
    shutil.rmtree(folder)
    make_adapter(base, folder, scale=0.5)
    return request


def responses(report: EvalReport) -> list[str]:
    return [sample.response for sample in sample_files.read(path_of(report.results[0].samples_location))]


def test_an_adapter_is_measured_and_is_not_its_base(services: RunningStack, points: Points, model: Path) -> None:
    points.submit(points.request(1))
    base = points.record(1)
    points.submit(adapter_request(points, model, 2))
    adapted = points.record(2)
    assert isinstance(base, EvalReport)
    assert isinstance(adapted, EvalReport), adapted
    assert {proof.level.value for proof in adapted.proofs} == {"content"}
    assert responses(adapted) != responses(base)
    wait_until(points.nothing_left)


def test_an_adapter_that_matches_no_module_is_refused_by_name(services: RunningStack, points: Points, model: Path) -> None:
    request = adapter_request(points, model, 1)
    weights = Path(request.source.path) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b"model.layers", b"model.blocks"))
    points.submit(request)
    record = points.record(1)
    assert isinstance(record, SkippedPoint)
    assert record.reason == "ckpt_invalid"
    assert "which its base does not have" in record.message


@pytest.fixture
def cluster(services: RunningStack) -> Iterator[None]:
    leasing.connect(services.stack.ray_address)
    import ray

    yield
    ray.shutdown()


def exported(points: Points, base: Path, step: int) -> SnapshotRef:
    point, adapter = EvalPoint(run=points.run, step=step), make_adapter(base, points.services.home / f"{points.run}-adapter")
    digests = [digest_file(adapter / name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    own = BaseModelRef(location=base.as_uri(), snapshot_digest=describe(base, validate(base), point).snapshot_digest)
    manifest = assemble({digest.name: digest.entry for digest in digests}, digests[1].tensors, point, own)
    return SnapshotRef(point=point, location=adapter.as_uri(), manifest=manifest, owned=False)


async def test_engines_that_hold_the_base_are_not_pinned_as_the_adapter(cluster: None, points: Points, model: Path) -> None:
    """The engine's folder is given the base's weights behind the host's back: the label is right, the content is not."""
    snapshot = exported(points, model, 1)
    lease = await leasing.acquire(FleetSpec(name="lora", num_engines=1, cpus_per_engine=0.25), snapshot, "test")
    async with leasing.held(lease):
        await pin(lease, snapshot)
        shutil.copyfile(model / "model.safetensors", Path(lease.engines[0].checkpoint_path) / "model.safetensors")
        with pytest.raises(PinViolation, match="holds other weights than snapshot"):
            await pin(lease, snapshot)
    await leasing.call(leasing.warden("lora").disband.remote(), 60)
