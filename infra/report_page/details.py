"""All that is said of one point: which weights, how that was proved, scores, samples and times; of a skipped one, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from infra.model import EvalReport, ProofLevel, SkippedPoint
from infra.presentation import score_rows
from infra.report_page.excerpts import Excerpts, excerpts
from infra.report_page.text import bounded
from infra.store import Store
from infra.wording import NONE, comparison_notes, comparison_row, score_text

Record = EvalReport | SkippedPoint
Row = Mapping[str, str | int]
MOST_MESSAGE, MOST_SCORES = 2_000, 4
MOST_SAMPLED, MOST_CHARACTERS = 50, 4_000_000  # points with samples, and characters of these altogether
_ELSEWHERE = {"vs previous", "vs baseline", "weight_version/mean", "mixed_version_ratio"}
_LEVELS = {
    ProofLevel.CONTENT: "content: the checksum of every tensor in the engine is the one that the snapshot's own bytes make",
    ProofLevel.RECORDED: "recorded: all checksums are those of this snapshot's first verified load",
    ProofLevel.AGREEMENT: "agreement: all engines hold the same weights; they could not be compared with the snapshot's bytes",
    ProofLevel.LIVE: "live: the engine reported this label before the first prompt and after the last, no more",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """All that is said of one point; without `samples`, `no_samples` says why there are none."""

    anchor: str
    title: str
    summary: str
    facts: Sequence[tuple[str, str]]
    tables: Sequence[Table]
    samples: Sequence[Excerpts] = ()
    no_samples: str = ""


def details_of(store: Store, records: Sequence[Record], each: int) -> list[Detail]:
    left, made = MOST_CHARACTERS, []
    for place, record in enumerate(records):
        if isinstance(record, SkippedPoint):
            made.append(_skipped(record))
            continue
        wanted = record.results if each and left > 0 and place < MOST_SAMPLED else ()
        samples = [excerpts(store, record, result, each) for result in wanted]
        left -= sum(one.characters for one in samples)
        made.append(
            _measured(
                record,
                samples,
                "only the newest points have them here, or the page would be too large" if each else "none were asked for",
            )
        )
    return made


def _skipped(record: SkippedPoint) -> Detail:
    facts = (("reason", record.reason), ("message", bounded(record.message, MOST_MESSAGE)), ("finished", record.finished_at))
    title = f"Step {place_of(record)}, suite {record.suite}"
    return Detail(anchor=anchor_of(record), title=title, summary=f"skipped, {record.reason}", facts=facts, tables=())


def _measured(report: EvalReport, samples: Sequence[Excerpts], no_samples: str) -> Detail:
    scores = [f"{result.dataset} {score_text(result)}" for result in report.results]
    scores += [f"{name} {value:g}" for name, value in report.metrics.items()]
    more = f" and {len(scores) - MOST_SCORES} more" if len(scores) > MOST_SCORES else ""
    if samples or not report.results:
        no_samples = "" if samples else "a black box keeps its own"
    return Detail(
        anchor=anchor_of(report),
        title=f"Step {place_of(report)}, suite {report.suite}",
        summary=", ".join(scores[:MOST_SCORES]) + more,
        facts=list(_facts(report)),
        tables=[table for table in _tables(report) if table.rows],
        samples=samples,
        no_samples=no_samples,
    )


def _facts(report: EvalReport) -> Iterator[tuple[str, str]]:
    yield "weights", report.weight_version
    if report.snapshot_digest is None:
        yield "snapshot", "none: measured on the trainer's own engines"
    else:
        yield "snapshot", report.snapshot_digest
    if not report.proofs:
        yield "proof", "verified and given to a black box as a folder; what that loaded is its own affair"
    for level in dict.fromkeys(proof.level for proof in report.proofs):
        yield "proof", _LEVELS[level]
    if report.results:
        yield "responses", "every one carried this version and no other"
    yield "suite digest", report.suite_digest
    yield "finished", f"{report.finished_at}, {report.lag_steps} steps behind the trainer"
    if report.point.missed:
        yield "stands for steps", ", ".join(map(str, report.point.missed))
    yield "seconds", f"{report.duration_seconds:.1f}, and {report.export_time_seconds:.3f} that training waited for staging"


def _tables(report: EvalReport) -> Iterator[Table]:
    yield Table(title="Scores", rows=_said(score_rows(report)))
    outcomes: list[dict[str, str | int]] = [
        {"dataset": one.dataset, **{name: n for name, n in one.outcomes.items() if n}} for one in report.results
    ]
    yield Table(title="What became of the samples", rows=_squared(outcomes))
    rows = [comparison_row(made) for made in report.comparisons]
    notes = [note for made in report.comparisons for note in comparison_notes(made)]
    yield Table(title="Beside earlier points", rows=rows, notes=list(dict.fromkeys(notes)))
    proofs = [
        {
            "engine": proof.engine,
            "read back": "this version" if proof.reported_version == report.weight_version else proof.reported_version,
            "proof": proof.level.value,
            "tensors proved": f"{proof.tensors_proved} of {proof.tensors}" if proof.tensors else NONE,
            "checksum": proof.checksum[:16] or NONE,
            "load (s)": f"{proof.load_seconds:.2f}",
        }
        for proof in report.proofs
    ]
    yield Table(title="How the weights were proved", rows=proofs)
    phases = {"staging (training waits)": report.export_time_seconds, **report.phases}
    yield Table(title="Time", rows=[{"phase": name, "seconds": f"{seconds:.3f}"} for name, seconds in phases.items()])


def _said(rows: Sequence[dict[str, str | int]]) -> list[Row]:
    """Without what is said elsewhere on the page, and without columns that say nothing of any row."""
    columns = [column for column in (rows[0] if rows else ()) if column not in _ELSEWHERE]
    kept = [column for column in columns if any(row[column] != NONE for row in rows)]
    return [{column: row[column] for column in kept} for row in rows]


def _squared(rows: Sequence[dict[str, str | int]]) -> list[Row]:
    """Every row with every column."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [{column: row.get(column, 0) for column in columns} for row in rows]


def place_of(record: Record) -> str:
    attempt = f" (attempt {record.point.attempt})" if record.point.attempt else ""
    return f"{record.point.step}{attempt}"


def anchor_of(record: Record) -> str:
    """By digest: a suite's name may hold what an address can't."""
    name = f"{record.point.key}/{record.suite}"
    return f"point-{xxhash.xxh64_hexdigest(name.encode(errors='surrogatepass'))}"
