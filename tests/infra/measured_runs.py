"""Runs as they are in a store after training: reports with samples, skips, and texts that mean harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infra.model import Comparison, Estimate, EvalPoint, EvalReport, PairedDifference, Sample, SampleOutcome, SkippedPoint
from infra.records import commit, write_samples
from infra.store import Store
from tests.infra.examples import REPORT, RESULT, SKIPPED, proof, sample

MARKUP = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'><!-- {{ 7 * 7 }} </pre></details>"
HIDDEN = "\u202eright to left\u202c \x1b[31mred\x1b[0m \x00 \u200bno width"
BROKEN = "\ud800"  # half of a pair: samples can hold it, records can't
LONG = "x" * 1_000_000
SCRIPTS = "Ответ: 四十二, אַרבעים, ٤٢, 🧮"
PHASES = {"export": 1.5, "acquire fleet": 0.5, "pin": 2.0, "run datasets": 6.0}
DATASETS = ("sums", "words")


def samples_of(right: int, count: int = 20) -> list[Sample]:
    """`right` of `count` are right; of the others one is truncated, and one could not be graded."""
    made = [
        sample(f"p{i}", prompt=f"What is {i} + {i}?", response=f"<b>{2 * i}</b>", reward=float(i < right)) for i in range(count)
    ]
    cut = replace(made[-1], outcome=SampleOutcome.TRUNCATED, response=LONG)
    ungraded = replace(made[-2], outcome=SampleOutcome.GRADER_ERROR, reward=None, detail=f"{MARKUP} {HIDDEN}")
    return [*made[:-2], ungraded, cut]


def measured(
    store: Store,
    step: int,
    right: int = 10,
    run: str = "run",
    attempt: int = 0,
    samples: Sequence[Sample] | None = None,
    apart: int = 0,
) -> EvalReport:
    """A point of two datasets, with its samples, as the report task leaves it; the second has `apart` fewer right."""
    point, results = EvalPoint(run=run, step=step, attempt=attempt), []
    for name, correct in zip(DATASETS, (right, right - apart), strict=True):
        location = write_samples(store, point, REPORT.suite, name, samples_of(correct) if samples is None else samples)
        score = Estimate(mean=correct / 20, stderr=0.1, low=correct / 20 - 0.1, high=correct / 20 + 0.1, n=20)
        results.append(replace(RESULT, dataset=name, score=score, samples_location=location, n_prompts=20, n_samples=20))
    better = PairedDifference(mean=0.1, stderr=0.02, n=20, gained=3, lost=1, low=0.05, high=0.15, p_value=0.01, method="tango")
    beside = Comparison(dataset="sums", against="previous", other=EvalPoint(run=run, step=0), difference=better)
    report = replace(
        REPORT,
        point=point,
        results=tuple(results),
        proofs=(proof("engine-0"), proof("engine-1")),
        phases=PHASES,
        comparisons=(beside,) if step else (),
        finished_at=f"2026-01-01T00:{step % 60:02d}:00+00:00",
    )
    commit(store, report)
    return report


def skipped(
    store: Store, step: int, reason: str = "busy", message: str = "2 in flight", run: str = "run", attempt: int = 0
) -> SkippedPoint:
    record = replace(SKIPPED, point=EvalPoint(run=run, step=step, attempt=attempt), reason=reason, message=message)
    commit(store, record)
    return record


def hostile_run(store: Store, run: str = "run") -> None:
    """Five points whose names, reasons and samples would like to be more than text."""
    nasty = [
        sample("evil", prompt=f"{MARKUP}{HIDDEN}{BROKEN}", response=f"{SCRIPTS}\n{MARKUP * 3}", answer=MARKUP, reward=0.5),
        sample("long", prompt="p" * 100_000, response=LONG, answer=LONG, reward=0.5),
    ]
    for step, right in ((0, 8), (20, 12), (60, 15)):
        measured(store, step, right, run, samples=[*samples_of(right), *nasty], apart=2)
    skipped(store, 40, "busy", f"2 in flight {MARKUP} {HIDDEN}", run)
    skipped(store, 80, f"own {MARKUP}", LONG, run)
