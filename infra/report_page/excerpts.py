"""Of many samples a few of each kind are shown, the same ones whenever they are chosen, and the rest is counted."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from infra.model import DatasetResult, EvalReport, Sample, SampleOutcome
from infra.records import read_samples
from infra.report_page.text import bounded
from infra.store import Store

KINDS = ("right", "partly right", "wrong", "truncated", "not graded")
MOST_PROMPT, MOST_RESPONSE, MOST_NOTE, MOST_BEGINNING = 4_000, 8_000, 1_000, 140


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """One sample, its texts bounded."""

    kind: str
    outcome: str
    reward: float | None
    problem: str
    prompt: str
    response: str
    answer: str
    detail: str
    engine: str
    tokens: int

    @property
    def begins(self) -> str:
        """The first words of the prompt, in one line."""
        words = " ".join(self.prompt[:MOST_BEGINNING].split())
        return words if len(self.prompt) <= MOST_BEGINNING else f"{words} …"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpts:
    """Of one dataset at one point: some samples, how many there are of each kind, or why there are none to show."""

    dataset: str
    location: str
    shown: tuple[Excerpt, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    missing: str = ""

    @property
    def left_out(self) -> int:
        return sum(count for _, count in self.counts) - len(self.shown)

    @property
    def characters(self) -> int:
        return sum(len(one.prompt) + len(one.response) + len(one.answer) + len(one.detail) for one in self.shown)


def excerpts(store: Store, report: EvalReport, result: DatasetResult, each: int) -> Excerpts:
    """Up to `each` samples of each kind; no more than those are in memory at once."""
    try:
        kept, counts = _chosen(read_samples(store, report.point, report.suite, result.dataset), each)
    except (FileNotFoundError, ValueError, OSError) as error:
        gone = isinstance(error, FileNotFoundError)
        why = "its samples are no longer in the store" if gone else f"its samples can't be read: {error}"
        return Excerpts(dataset=result.dataset, location=result.samples_location, missing=why)
    shown = tuple(_excerpt(kind, sample) for kind in KINDS for sample in kept[kind])
    counted = tuple((kind, counts[kind]) for kind in KINDS if counts[kind])
    return Excerpts(dataset=result.dataset, location=result.samples_location, shown=shown, counts=counted)


def _chosen(samples: Iterable[Sample], each: int) -> tuple[dict[str, list[Sample]], Counter[str]]:
    """By the prompts' digests, first responses first: of each point the same prompts, which can be compared."""
    counts: Counter[str] = Counter()
    heaps: dict[str, list[tuple[int, int, int, Sample]]] = {kind: [] for kind in KINDS}
    for number, sample in enumerate(samples):
        kind = kind_of(sample)
        counts[kind] += 1
        digest = xxhash.xxh64_intdigest(sample.prompt.encode(errors="surrogatepass"))
        entry = (-sample.index, -digest, -number, sample)
        (heapq.heappush if len(heaps[kind]) < each else heapq.heappushpop)(heaps[kind], entry)
    return {kind: [entry[-1] for entry in sorted(heap, reverse=True)] for kind, heap in heaps.items()}, counts


def kind_of(sample: Sample) -> str:
    if sample.outcome is SampleOutcome.TRUNCATED:
        return "truncated"
    if sample.reward is None:
        return "not graded"
    return "right" if sample.reward >= 1 else "wrong" if sample.reward <= 0 else "partly right"


def _excerpt(kind: str, sample: Sample) -> Excerpt:
    return Excerpt(
        kind=kind,
        outcome=sample.outcome.value,
        reward=sample.reward,
        problem=bounded(sample.problem_id, MOST_NOTE),
        prompt=bounded(sample.prompt, MOST_PROMPT),
        response=bounded(sample.response, MOST_RESPONSE),
        answer=bounded(sample.answer, MOST_NOTE),
        detail=bounded(sample.detail, MOST_NOTE),
        engine=bounded(sample.engine, MOST_NOTE),
        tokens=sample.completion_tokens,
    )
