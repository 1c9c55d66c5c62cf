"""A point is compared with another on the prompts that both were asked, and what can't be compared says why.

Prompts are paired by id *and* content, so that a row that was edited is another prompt. Only points of one suite digest were
asked and graded in the same way: nothing is compared across two of them unless a person insists.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import xxhash

from infra.errors import PinpointError
from infra.model import Comparison, EvalPoint, EvalReport, Sample
from infra.records import history, read_samples
from infra.statistics import mean_by_prompt, paired_difference
from infra.store import Store

logger = logging.getLogger(__name__)
NOT_READABLE = (PinpointError, OSError, ValueError)
_OTHERS: Sequence[tuple[int, Literal["previous", "baseline"]]] = ((-1, "previous"), (0, "baseline"))
PromptKey = tuple[str, str]


class PromptScores:
    """Mean reward by prompt, of datasets at points of one suite; each is read from the store once."""

    def __init__(self, store: Store, suite: str) -> None:
        self.store, self.suite = store, suite
        self._read: dict[tuple[EvalPoint, str], dict[PromptKey, float]] = {}

    def of(self, point: EvalPoint, dataset: str) -> dict[PromptKey, float]:
        """Raises what reading samples raises: see `read_samples`."""
        if (point, dataset) not in self._read:
            samples = read_samples(self.store, point, self.suite, dataset)
            self._read[point, dataset] = mean_by_prompt(samples, prompt_key)
        return self._read[point, dataset]


def prompt_key(sample: Sample) -> PromptKey:
    return sample.problem_id, xxhash.xxh3_128_hexdigest(repr((sample.prompt, sample.answer)).encode())


def compare(
    scores: PromptScores,
    mine: EvalReport,
    other: EvalReport,
    dataset: str,
    against: Literal["previous", "baseline", "asked"],
) -> Comparison:
    """`mine` minus `other`; never raises for samples that are gone or can't be read.

    What has no score because too few samples could be graded has no difference either: the prompts that were graded are not
    any prompts.
    """
    made = Comparison(dataset=dataset, against=against, other=other.point)
    if without := _without_score(dataset, mine, other):
        return replace(made, reason=without)
    try:
        mine_by_prompt, other_by_prompt = scores.of(mine.point, dataset), scores.of(other.point, dataset)
    except FileNotFoundError as error:
        return replace(made, reason=f"its samples are not in the store: {error}")
    except NOT_READABLE as error:
        return replace(made, reason=f"its samples can't be read: {error}")
    unpaired = len(mine_by_prompt.keys() ^ other_by_prompt.keys())
    difference = paired_difference(mine_by_prompt, other_by_prompt)
    reason = "" if difference else "no prompt has a grade at both points"
    return replace(made, difference=difference, unpaired=unpaired, reason=reason)


def _without_score(dataset: str, *reports: EvalReport) -> str:
    """Why the first that has no score has none."""
    refused = ((report, result.no_score) for report in reports for result in report.results if result.dataset == dataset)
    return next((f"{report.point.name} has no score: {why}" for report, why in refused if why), "")


def asked_alike(one: EvalReport, other: EvalReport) -> bool:
    """Whether both have the same suite digest, but for datasets of which one of them, for a fault, was asked nothing."""
    if one.suite_digest == other.suite_digest:
        return True
    mine, others = ({result.dataset: result for result in report.results} for report in (one, other))
    if mine.keys() != others.keys():
        return False
    pairs = [(mine[name], others[name]) for name in mine if mine[name].n_samples and others[name].n_samples]
    return len(pairs) < len(mine) and all(first.digest == second.digest != "" for first, second in pairs)


def with_comparisons(store: Store, report: EvalReport) -> EvalReport:
    """The report with each dataset beside the previous point and the baseline; never raises for what can't be compared.

    The previous point is the newest measured one at an earlier step, the baseline the oldest, both of the same suite digest
    and of this start of the trainer or an earlier one.
    """
    if not report.results:
        return report
    try:
        before = _measured_before(store, report)
    except NOT_READABLE as error:
        return without_comparisons(report, f"the run's earlier points can't be read: {error}")
    alike = [earlier for earlier in before if asked_alike(earlier, report)]
    if not alike:
        return without_comparisons(report, f"the suite has changed since {before[-1].point.name}") if before else report
    scores = PromptScores(store, report.suite)
    made = [
        compare(scores, report, alike[position], result.dataset, against)
        for result in report.results
        for position, against in _OTHERS
    ]
    return replace(report, comparisons=tuple(made), points_so_far=len(alike) + 1)


def without_comparisons(report: EvalReport, reason: str) -> EvalReport:
    """Every dataset of the report says why it is compared with nothing."""
    logger.warning("%s, suite %s is compared with no earlier point: %s", report.point.name, report.suite, reason)
    none = [
        Comparison(dataset=result.dataset, against=against, other=None, reason=reason)
        for result in report.results
        for _, against in _OTHERS
    ]
    return replace(report, comparisons=tuple(none))


def _measured_before(store: Store, report: EvalReport) -> list[EvalReport]:
    """The run's reports of this suite at earlier steps, by step; not those of a later start of the trainer."""
    records = [record for record in history(store, report.point.run) if record.suite == report.suite]
    reports = [record for record in records if isinstance(record, EvalReport) and record.point.attempt <= report.point.attempt]
    return [earlier for earlier in reports if earlier.point.step < report.point.step]
