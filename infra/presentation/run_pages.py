"""Pages of a run, and of the runs that were measured with one suite: a curve, what was skipped, who is best."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import xxhash

from infra.model import EvalReport, SkippedPoint
from infra.presentation.rows import scores_of
from infra.presentation.texts import code, escaped

Record = EvalReport | SkippedPoint
MOST_SKIPS = 10
MOST_KEY = 100
MOST_COLUMNS = 3
NONE = "–"


def history_key(run: str) -> str:
    """The key of a run's history artifact. Prefect takes lowercase letters, digits and dashes; other names get a digest."""
    return _key("history", run)


def curve_key(run: str) -> str:
    return _key("curve", run)


def comparison_key(suite: str) -> str:
    return _key("comparison", suite)


def _key(kind: str, name: str) -> str:
    key = re.sub("[^a-z0-9]+", "-", name.lower()[:MOST_KEY]).strip("-")
    digest = xxhash.xxh32_hexdigest(name.encode(errors="surrogatepass"))
    return f"{kind}-{key}" if key == name else f"{kind}-{key}-{digest}"


def history_description(run: str, records: Sequence[Record], shown: int) -> str:
    """One line, whose beginning is read in a list of artifacts: how many points, how many of them skipped."""
    skipped = sum(isinstance(record, SkippedPoint) for record in records)
    newest = f", newest step {max(record.point.step for record in records)}" if records else ""
    part = f"; the newest {shown} are shown" if shown < len(records) else ""
    points = f"{len(records)} point{'' if len(records) == 1 else 's'}"
    return f"{points}, {skipped} skipped{newest}{part} · evaluation history of {run}"


def curve_markdown(run: str, records: Sequence[Record], image: str, note: str = "", *, store_url: str = "") -> str:
    """`image` is a data: URL, or "" if there is none; `note` says what it leaves out."""
    skips = [record for record in records if isinstance(record, SkippedPoint)]
    lines = [f"* step {record.point.step}: **{escaped(record.reason)}** {escaped(record.message)}" for record in skips]
    sections = [
        f"# Curve of {escaped(run)}",
        f"[all its points](../key/{history_key(run)})",
        f"![the scores of {escaped(run)} by step]({image})" if image else "The curve could not be drawn.",
        escaped(note) if note else "",
        "Bars are 95% intervals; a cross marks a point that was skipped.",
        f"## Skipped\n{chr(10).join(lines[-MOST_SKIPS:][::-1])}" if lines else "",
        f"{len(lines) - MOST_SKIPS} earlier ones are in the history." if len(lines) > MOST_SKIPS else "",
        f"As a page that opens from disk: {code(html_command(run, store_url))}",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def html_command(run: str, store_url: str) -> str:
    """What a reader types to see all of it."""
    return f"pinpoint report {run} --html report.html" + (f" --store {shlex.quote(store_url)}" if store_url else "")


def comparison_markdown(
    suite: str, histories: Mapping[str, Sequence[Record]], image: str, *, others: int = 0, note: str = ""
) -> str:
    """Runs side by side, at their newest point and at the best one; `others` is how many more runs there are."""
    names = list(dict.fromkeys(name for records in histories.values() for record in records for name in scores_of(record)))
    shown = names[:MOST_COLUMNS]
    head = ["run", "at", *map(escaped, shown), "suite digest"]
    rows = [row for run, records in histories.items() for row in _rows(run, records, shown)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])
    left = len(names) - len(shown)
    sections = [
        f"# Runs measured with {escaped(suite)}",
        f"![the scores of {len(histories)} runs by step]({image})" if image else "The curves could not be drawn.",
        escaped(note) if note else "",
        table,
        f"*best*: the point at which the mean of {escaped(shown[0])} is highest, which may be luck." if shown else "",
        f"{left} more datasets are in each run's history." if left > 0 else "",
        f"These are the runs that were measured last; {others} more are in the store." if others > 0 else "",
        "Scores under different suite digests are of different questions. Two points, paired by prompt: `pinpoint compare`.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _rows(run: str, records: Sequence[Record], names: Sequence[str]) -> list[list[str]]:
    reports = [record for record in records if isinstance(record, EvalReport)]
    link = f"[{escaped(run)}](../key/{curve_key(run)})"
    if not reports:
        return [[link, "no report", *(NONE for _ in names), NONE]]
    newest = max(reports, key=lambda report: (report.point.step, report.point.attempt))
    best = max(reports, key=lambda report: (_value(report, names[0]), report.point.step)) if names else newest
    rows = [_row(link, "newest", newest, names)]
    return rows if best is newest else [*rows, _row("", "best", best, names)]


def _row(link: str, which: str, report: EvalReport, names: Sequence[str]) -> list[str]:
    scores = scores_of(report)
    at = f"{which}, step {report.point.step}"
    return [link, at, *(escaped(scores.get(name, NONE)) for name in names), escaped(report.suite_digest[:8])]


def _value(report: EvalReport, name: str) -> float:
    means = {result.dataset: result.score.mean for result in report.results if result.score is not None}
    return {**report.metrics, **means}.get(name, float("-inf"))
