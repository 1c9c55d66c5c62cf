"""Records as people read them: the same rows for the terminal and for the Prefect UI; nothing in them can inject markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

import xxhash

from infra.model import Comparison, DatasetResult, EngineProof, EvalReport, Manifest, SkippedPoint
from infra.statistics import chance_note
from infra.wording import (
    comparison_notes,
    comparison_row,
    comparison_text,
    estimate_text,
    lengths_text,
    passes_text,
    share_text,
)
from infra.wording import score_text as score_text

_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|~$&]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
MAX_TEXT = 300


def plain(text: str) -> str:
    """Untrusted text as one short line without control characters, for the terminal and table cells."""
    line = _CONTROL.sub(" ", text).strip()
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"


def escaped(text: str) -> str:
    """Untrusted text for markdown: every character that could begin markup is a character reference."""
    return _MARKUP.sub(lambda found: f"&#{ord(found.group())};", plain(text))


def score_rows(report: EvalReport) -> list[dict[str, str | int]]:
    """One row a dataset, or a black box's metric."""
    if report.metrics:
        return [{"metric": plain(name), "value": f"{value:g}"} for name, value in report.metrics.items()]
    return [
        {
            "dataset": result.dataset,
            "score [95% interval]": score_text(result),
            "vs previous": comparison_text(_against(report, result.dataset, "previous")),
            "vs baseline": comparison_text(_against(report, result.dataset, "baseline")),
            "pass@k": passes_text(result.pass_at_k),
            "prompts": result.n_prompts,
            "samples": result.n_samples,
            "coverage": f"{result.coverage:.1%}",
            "truncated": share_text(result.truncated_ratio),
            "completed only": estimate_text(result.score_completed),
            "tokens p50 / p90 / p99 / max": lengths_text(result),
            "looping": share_text(result.repetition_ratio),
            "weight_version/mean": f"{result.weight_version_mean:g}",
            "mixed_version_ratio": f"{result.mixed_version_ratio:g}",
        }
        for result in report.results
    ]


def _against(report: EvalReport, dataset: str, other: str) -> Comparison | None:
    return next((made for made in report.comparisons if (made.dataset, made.against) == (dataset, other)), None)


def history_rows(records: Sequence[EvalReport | SkippedPoint]) -> list[dict[str, str]]:
    """One row a point, a column a dataset; a skipped point keeps its place and says why."""
    reports = [record for record in records if isinstance(record, EvalReport)]
    datasets = list(
        dict.fromkeys(name for record in reports for name in (*(r.dataset for r in record.results), *record.metrics))
    )
    suites = {record.suite for record in records}
    rows: list[dict[str, str]] = []
    for record in records:
        row = {"step": str(record.point.step)}
        if record.point.attempt:
            row["step"] += f" (attempt {record.point.attempt})"
        if len(suites) > 1:
            row["suite"] = record.suite
        scores: dict[str, str] = {}
        if isinstance(record, EvalReport):
            scores = {name: f"{value:g}" for name, value in record.metrics.items()}
            scores |= {result.dataset: score_text(result) for result in record.results}
        row.update({name: scores.get(name, "–") for name in datasets})
        row["lag"] = str(record.lag_steps) if isinstance(record, EvalReport) else "–"
        row["export s"] = f"{record.export_time_seconds:.3f}"
        row["skipped"] = plain(f"{record.reason}: {record.message}") if isinstance(record, SkippedPoint) else ""
        rows.append(row)
    return rows


def _left_out(result: DatasetResult) -> str:
    """What of the data was not measured, if anything."""
    counts = ((result.bad_rows, "bad rows of the data passed over"), (result.too_long, "prompts longer than the context"))
    return "".join(f"; {count} {what}" for count, what in counts if count)


def report_markdown(report: EvalReport, manifest: Manifest | None) -> str:
    """What was measured, which weights, how that was proved, and how long each phase took; narrow enough for the UI.

    `manifest` is the snapshot's; None for a point that was measured on the trainer's own engines.
    """
    phases = "\n".join(f"| {name} | {seconds:.2f} |" for name, seconds in report.phases.items())
    outcomes = "\n".join(
        f"| {result.dataset} | {', '.join(f'{n} {name}' for name, n in result.outcomes.items() if n)}{_left_out(result)} | "
        f"[{result.worst:.3f}, {result.best:.3f}] | {result.duration_seconds:.1f} |"
        for result in report.results
    )
    locations = "\n".join(f"* {result.dataset}: {escaped(result.samples_location)}" for result in report.results)
    return f"""# {escaped(report.point.name)}

Suite **{report.suite}**, finished {report.finished_at}, {report.lag_steps} steps behind the trainer.

## Which weights
{_of_snapshot(report, manifest) if manifest else _of_live_engines(report)}
{"Every response carried this version and no other." if report.results else ""}

## Samples
| dataset | outcomes | bounds | seconds |
|---|---|---|---|
{outcomes}

*bounds*: the mean if all samples that could not be graded were wrong, or right.

{_of_responses(report)}
{locations}

Suite digest `{report.suite_digest}`

{_of_comparisons(report)}
## Time
| phase | seconds |
|---|---|
| staging (training waited) | {report.export_time_seconds:.3f} |
{phases}
| all but staging | {report.duration_seconds:.2f} |
"""


def _of_responses(report: EvalReport) -> str:
    if not report.results:
        return ""
    rows = "\n".join(
        f"| {result.dataset} | {passes_text(result.pass_at_k)} | {passes_text(result.best_at_k)} "
        f"| {share_text(result.truncated_ratio)} | {estimate_text(result.score_completed)} | {lengths_text(result)} "
        f"| {share_text(result.repetition_ratio)} |"
        for result in report.results
    )
    return f"""| dataset | pass@k | best@k | truncated | completed only | tokens p50 / p90 / p99 / max | looping |
|---|---|---|---|---|---|---|
{rows}

*completed only*: the score of the responses that were not truncated. *looping*: responses that end in a loop.
"""


def _of_comparisons(report: EvalReport) -> str:
    if not report.comparisons:
        return ""
    rows = [comparison_row(made) for made in report.comparisons]
    notes = [note for made in report.comparisons for note in comparison_notes(made)]
    many = chance_note(report.points_so_far, len(report.results))
    return f"""## Beside earlier points
| {" | ".join(rows[0])} |
|{"---|" * len(rows[0])}
{chr(10).join(f"| {' | '.join(map(escaped, row.values()))} |" for row in rows)}

This point minus the other, on the prompts that both have. *detectable*: the true difference that would show in 4 of 5 such
evaluations; what is smaller may be there and not be seen.

{chr(10).join(f"* {escaped(note)}" for note in [*dict.fromkeys(notes), many] if note)}

"""


def _of_snapshot(report: EvalReport, manifest: Manifest) -> str:
    if not report.proofs:
        return f"""Weight version `{report.weight_version}`

Snapshot `{report.snapshot_digest}`: {len(manifest.files)} files, {manifest.n_bytes:,} bytes, verified and given to a black box
as a folder. What that loaded, and how it measured, is its own affair."""
    proofs = "\n".join(
        f"| {escaped(proof.engine)} | {_same_or_other(proof.reported_version, report.weight_version)} | {proof.level.value} "
        f"| {escaped(proof.checksum[:12])}… | {_canary(proof)} | {proof.load_seconds:.2f} |"
        for proof in report.proofs
    )
    return f"""Weight version `{report.weight_version}`

Snapshot `{report.snapshot_digest}`: {len(manifest.files)} files, {manifest.n_bytes:,} bytes

| engine | read back | proof | checksum | canary | load (s) |
|---|---|---|---|---|---|
{proofs}

*content*: every tensor in the engine equals the manifest's digest. *recorded*: all checksums are those of this snapshot's first
verified load. *agreement*: the engines hold the same weights. *canary*: the mean log-probability of a fixed text, on which all
engines agree. An engine that is there twice was lost, and pinned again."""


def _of_live_engines(report: EvalReport) -> str:
    proofs = "\n".join(f"| {escaped(proof.engine)} | {proof.level.value} |" for proof in report.proofs)
    return f"""Weight version {escaped(report.weight_version)}, a label of the trainer's own, on its own engines

| engine | proof |
|---|---|
{proofs}

*live*: the engine reported this label before the first prompt and after the last. What it holds was not looked at."""


def _canary(proof: EngineProof) -> str:
    if not proof.canary:
        return "–"
    moved = {True: ", has moved", False: ", has not moved", None: ""}[proof.canary_moved]
    return f"{sum(proof.canary) / len(proof.canary):.3f}{moved}"


def _same_or_other(reported: str, pinned: str) -> str:
    return "this version" if reported == pinned else escaped(reported)


def history_key(run: str) -> str:
    """The key of a run's history artifact. Prefect takes lowercase letters, digits and dashes; other names get a digest."""
    key = re.sub("[^a-z0-9]+", "-", run.lower()).strip("-")
    return f"history-{key}" if key == run else f"history-{key}-{xxhash.xxh32_hexdigest(run.encode())}"
