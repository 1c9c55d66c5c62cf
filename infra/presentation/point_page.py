"""The page of a measured point: what was measured, on which weights, how that was proved, what is missing, and what it took.

It is narrow enough for the UI, and each paragraph says what the numbers above it mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.model import DatasetResult, EngineProof, EvalReport, Manifest
from infra.presentation.rows import against
from infra.presentation.run_pages import comparison_key, curve_key, history_key, html_command
from infra.presentation.texts import code, escaped
from infra.presentation.transcripts import Transcript, transcripts_markdown
from infra.statistics import chance_note
from infra.wording import (
    comparison_notes,
    comparison_row,
    comparison_text,
    estimate_text,
    lengths_text,
    passes_text,
    score_text,
    share_text,
)

GRADED_NOT = {
    "grader_timeout": "not graded: the grader took too long",
    "grader_error": "not graded: the grader failed",
    "infra_error": "got no response",
}


def report_markdown(
    report: EvalReport,
    manifest: Manifest | None,
    *,
    transcripts: Sequence[Transcript] = (),
    unread: str = "",
    store_url: str = "",
) -> str:
    """`manifest` is the snapshot's; None for a point that was measured on the trainer's own engines.

    `unread` says why there are no transcripts, `store_url` is where the report and its samples are.
    """
    sections = [
        f"# {escaped(report.point.name)}\n\n{_subject(report)}",
        f"## Scores\n{_scores(report)}",
        f"## Which weights\n{_of_snapshot(report, manifest) if manifest else _of_live_engines(report)}",
        f"## Skipped or failed parts\n{_missing(report)}",
        _of_responses(report),
        _of_comparisons(report),
        _transcripts(report, transcripts, unread),
        f"## Time\n{_time(report)}",
        _where(report, store_url),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _subject(report: EvalReport) -> str:
    late = f"{report.lag_steps} steps behind the trainer" if report.lag_steps else "not behind the trainer"
    attempt = f", attempt {report.point.attempt}" if report.point.attempt else ""
    missed = f" It also stands for the due steps {', '.join(map(str, report.point.missed))}." if report.point.missed else ""
    here = {curve_key(report.point.run): "curve", history_key(report.point.run): "history"}
    here[comparison_key(report.suite)] = "beside other runs"
    links = " · ".join(f"[{text}](../key/{key})" for key, text in here.items())
    return f"Suite **{escaped(report.suite)}**{attempt}, finished {escaped(report.finished_at)}, {late}.{missed}\n\n{links}"


def _scores(report: EvalReport) -> str:
    if report.metrics:
        return _table(("metric", "value"), [(escaped(name), escaped(f"{value:g}")) for name, value in report.metrics.items()])
    rows = [
        (
            escaped(result.dataset),
            escaped(score_text(result)),
            escaped(comparison_text(against(report, result.dataset, "previous"))),
            escaped(comparison_text(against(report, result.dataset, "baseline"))),
            f"{result.n_prompts} x {result.samples_per_prompt or result.n_samples / max(1, result.n_prompts):g}",
        )
        for result in report.results
    ]
    head = ("dataset", "score [95% interval]", "vs previous", "vs baseline", "prompts x samples")
    return _table(head, rows)


def _of_snapshot(report: EvalReport, manifest: Manifest) -> str:
    if not report.proofs:
        return f"""Weight version {code(report.weight_version)}

Snapshot {code(report.snapshot_digest or "")}: {len(manifest.files)} files, {manifest.n_bytes:,} bytes, verified and given to a
black box as a folder. What that loaded, and how it measured, is its own affair."""
    rows = [
        (
            escaped(proof.engine),
            _same_or_other(proof.reported_version, report.weight_version),
            proof.level.value,
            f"{escaped(proof.checksum[:12])}…",
            _canary(proof),
            f"{proof.load_seconds:.2f}",
        )
        for proof in report.proofs
    ]
    return f"""Weight version {code(report.weight_version)}

Snapshot {code(report.snapshot_digest or "")}: {len(manifest.files)} files, {manifest.n_bytes:,} bytes

{_table(("engine", "read back", "proof", "checksum", "canary", "load (s)"), rows)}

Every response carried this version and no other. *content*: every tensor in the engine equals the manifest's digest.
*recorded*: all checksums are those of this snapshot's first verified load. *agreement*: the engines hold the same weights.
*canary*: the mean log-probability of a fixed text, on which all engines agree."""


def _of_live_engines(report: EvalReport) -> str:
    rows = [(escaped(proof.engine), proof.level.value) for proof in report.proofs]
    return f"""Weight version {escaped(report.weight_version)}, a label of the trainer's own, on its own engines

{_table(("engine", "proof"), rows)}

Every response carried this version and no other. *live*: the engine reported this label before the first prompt and after the
last. What it holds was not looked at."""


def _canary(proof: EngineProof) -> str:
    if not proof.canary:
        return "–"
    moved = {True: ", has moved", False: ", has not moved", None: ""}[proof.canary_moved]
    return f"{sum(proof.canary) / len(proof.canary):.3f}{moved}"


def _same_or_other(reported: str, pinned: str) -> str:
    return "this version" if reported == pinned else escaped(reported)


def _missing(report: EvalReport) -> str:
    """What of the data was not measured, what could not be graded or compared, and which engines were lost, if any."""
    found = [f"{result.dataset}: {text}" for result in report.results for text in _missing_of(result)]
    engines = [proof.engine for proof in report.proofs]
    lost = [name for name in dict.fromkeys(engines) if engines.count(name) > 1]
    found += [f"engine {name} was lost, and pinned again before it was asked anything" for name in lost]
    reasons = {made.reason: made.against for made in report.comparisons if made.reason and made.other is None}
    found += [f"not compared with earlier points: {reason}" for reason in reasons]
    none = "" if report.metrics else "None: every sample was asked for, came, and was graded."
    return "\n".join(f"* {escaped(text)}" for text in found) or none or "What a black box leaves out, it does not tell."


def _missing_of(result: DatasetResult) -> list[str]:
    found = [f"{count} samples {GRADED_NOT[name]}" for name, count in result.outcomes.items() if count and name in GRADED_NOT]
    if result.coverage < 1:
        bounds = f"[{result.worst:.3f}, {result.best:.3f}]"
        found.append(f"the mean would be in {bounds} if what could not be graded was all wrong, or all right")
    if result.score is None:
        found.append(f"no score: {result.no_score or 'nothing could be graded'}")
    counts = ((result.bad_rows, "bad rows of the data passed over"), (result.too_long, "prompts longer than the context"))
    return found + [f"{count} {what}" for count, what in counts if count]


def _of_responses(report: EvalReport) -> str:
    if not report.results:
        return ""
    outcomes = [
        (
            escaped(result.dataset),
            escaped(", ".join(f"{n} {name.replace('_', ' ')}" for name, n in result.outcomes.items() if n)),
            share_text(result.truncated_ratio),
            escaped(estimate_text(result.score_completed)),
            f"{result.duration_seconds:.1f}",
        )
        for result in report.results
    ]
    like = [
        (
            escaped(result.dataset),
            escaped(passes_text(result.pass_at_k)),
            escaped(passes_text(result.best_at_k)),
            lengths_text(result),
            share_text(result.repetition_ratio),
        )
        for result in report.results
    ]
    return f"""## Responses
{_table(("dataset", "outcomes", "truncated", "score of completed only", "seconds"), outcomes)}

{_table(("dataset", "pass@k", "best@k", "tokens p50 / p90 / p99 / max", "looping"), like)}

*completed only*: the responses that were not truncated. *looping*: responses that end in a loop."""


def _of_comparisons(report: EvalReport) -> str:
    compared = [made for made in report.comparisons if made.other is not None]
    if not compared:
        return ""
    rows = [comparison_row(made) for made in compared]
    notes = [note for made in compared for note in comparison_notes(made)]
    many = chance_note(report.points_so_far, len(report.results))
    said = "\n".join(f"* {escaped(note)}" for note in [*dict.fromkeys(notes), many] if note)
    return f"""## Beside earlier points
{_table(tuple(rows[0]), [tuple(map(escaped, row.values())) for row in rows])}

This point minus the other, on the prompts that both have. *detectable*: the true difference that would show in 4 of 5 such
evaluations; what is smaller may be there and not be seen.

{said}"""


def _transcripts(report: EvalReport, transcripts: Sequence[Transcript], unread: str) -> str:
    if not report.results:
        return ""
    return f"""## Three responses
The first that was right, wrong and truncated, in the order of the suite and its problems: not a random sample.

{transcripts_markdown(transcripts, unread)}"""


def _time(report: EvalReport) -> str:
    phases: Mapping[str, str] = {
        "staging (training waited)": f"{report.export_time_seconds:.3f}",
        **{escaped(name): f"{seconds:.2f}" for name, seconds in report.phases.items()},
        "all but staging": f"{report.duration_seconds:.2f}",
    }
    return _table(("phase", "seconds"), list(phases.items()))


def _where(report: EvalReport, store_url: str) -> str:
    samples = [
        f"* samples of {escaped(result.dataset)}: {code(result.samples_location)}"
        for result in report.results
        if result.samples_location
    ]
    record = f"{store_url}/runs/{report.point.run}/points/{report.point.key}/{report.suite}/record.json"
    lines = [*([f"* report: {code(record)}"] if store_url else []), *samples]
    return f"""## Where it is
{chr(10).join([*lines, f"* suite digest: {code(report.suite_digest)}"])}

All samples, as a page that opens from disk: {code(html_command(report.point.run, store_url))}"""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
