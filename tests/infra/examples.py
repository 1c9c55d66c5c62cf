"""One plain example of each domain value, to be changed by the test that needs another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.model import (
    DatasetResult,
    DatasetSpec,
    EngineProof,
    EngineRef,
    Estimate,
    EvalPoint,
    EvalReport,
    EvalRequest,
    FileEntry,
    FleetLease,
    Manifest,
    ProofLevel,
    Sample,
    SampleOutcome,
    SkippedPoint,
    SnapshotRef,
    SnapshotSource,
    Suite,
)

POINT = EvalPoint(run="run", step=10)
DIGEST = "0123456789abcdef" * 2
MANIFEST = Manifest(
    run="run",
    step=10,
    attempt=0,
    made_by="test",
    files={"model.safetensors": FileEntry(size=8, digest="f" * 32)},
    tensors={},
    snapshot_digest=DIGEST,
)
SNAPSHOT = SnapshotRef(point=POINT, location="file:///store/snapshots/run/x", manifest=MANIFEST, owned=True)
TOKEN = SNAPSHOT.version.token


def lease(*engines: str) -> FleetLease:
    refs = tuple(EngineRef(name=name, base_url="http://127.0.0.1:1", pid=1, checkpoint_path="/x") for name in engines)
    return FleetLease(fleet="eval", epoch=1, holder="test", ttl_s=60.0, engines=refs, api_key="secret")


def proof(engine: str, version: str = TOKEN, checksum: str = "c") -> EngineProof:
    return EngineProof(engine=engine, reported_version=version, checksum=checksum, level=ProofLevel.CONTENT, load_seconds=0.1)


def dataset(name: str = "sums", source: str = "/sums.jsonl", **changes: Any) -> DatasetSpec:
    return DatasetSpec(name=name, source=source, **changes)


def request(point: EvalPoint = POINT, store_url: str = "file:///store", staged: str = "", **changes: Any) -> EvalRequest:
    source = SnapshotSource(path=staged or "/ckpt", staged=bool(staged))
    suite = Suite(name="suite", datasets=(dataset(),))
    return EvalRequest(point=point, source=source, suite=suite, store_url=store_url, **changes)


RESULT = DatasetResult(
    dataset="sums",
    score=Estimate(mean=0.5, stderr=0.1, low=0.3, high=0.7, n=10),
    coverage=1.0,
    worst=0.5,
    best=0.5,
    n_prompts=10,
    n_samples=10,
    outcomes={"ok": 10},
    truncated_ratio=0.0,
    weight_version_mean=10.0,
    mixed_version_ratio=0.0,
    completion_tokens=20,
    duration_seconds=1.0,
    samples_location="file:///store/samples",
)
REPORT = EvalReport(
    point=POINT,
    suite="suite",
    suite_digest="5" * 32,
    snapshot_digest=MANIFEST.snapshot_digest,
    weight_version=TOKEN,
    proofs=(proof("a"),),
    results=(RESULT,),
    lag_steps=3,
    export_time_seconds=0.2,
    duration_seconds=4.0,
    phases={"pin": 1.0},
    finished_at="2026-01-01T00:00:00+00:00",
)
SKIPPED = SkippedPoint(
    point=POINT,
    suite="suite",
    reason="busy",
    message="2 in flight",
    export_time_seconds=0.0,
    finished_at="2026-01-01T00:00:00+00:00",
)


def report_at(step: int, attempt: int = 0, run: str = "run") -> EvalReport:
    return replace(REPORT, point=EvalPoint(run=run, step=step, attempt=attempt))


def sample(problem: str = "p", index: int = 0, reward: float | None = 1.0, **changes: Any) -> Sample:
    outcome = SampleOutcome.OK if reward is not None else SampleOutcome.INFRA_ERROR
    made = Sample(
        problem_id=problem,
        index=index,
        prompt="1+1=",
        response="2",
        answer="2",
        outcome=outcome,
        reward=reward,
        weight_versions=(TOKEN,),
        engine="a",
        completion_tokens=1,
    )
    return replace(made, **changes)


def jsonl(path: Path, *lines: str) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)
