"""A run's curve: every score at its step with its 95% interval, and every point that has none at its step with the reason.

The same records give the same chart, byte for byte. What is too much to be read is left out, and the chart says so. Names
and texts of a run are values of the data: none is ever the name of a field, or an expression.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from infra.curve_marks import Mark, Record, gap_marks, lines_of, phase_marks, series_names, value_marks
from infra.model import EvalReport, SkippedPoint

if TYPE_CHECKING:  # who draws nothing does not wait for altair
    import altair as alt

WIDTH, HEIGHT, SMALL_HEIGHT = 600, 260, 130
MOST_SERIES, MOST_RUNS, MOST_IN_PICTURE = 20, 12, 100
MOST_LISTED = 6
Panels = Sequence[tuple[str, Sequence[Mark]]]


def curve_chart(run: str, records: Sequence[Record], *, width: int = WIDTH, most: int = 0) -> alt.VConcatChart:
    """Values by step, one colour a dataset or metric; metrics outside [0, 1] below, each on an axis of its own.

    Of more than `most` measured points only so many are drawn, evenly; 0 draws all. Skips are all drawn.
    """
    everything, records = records, _thinned(records, most)
    said = [_counted(everything, records)]
    names = series_names(records)
    drawn = dict(islice(names.items(), MOST_SERIES))
    marks = value_marks(records, drawn, everything)
    wide = list(dict.fromkeys(mark["series"] for mark in marks if not 0 <= mark["value"] <= 1))
    unit = [mark for mark in marks if mark["series"] not in wide]
    panels = [("score", unit)] if unit or not wide else []
    panels += [(name, [mark for mark in marks if mark["series"] == name]) for name in wide]
    said.append(_left_out(len(names) - len(drawn), "datasets or metrics"))
    return _drawn(f"Evaluation history of {run}", said, records, panels, "series", drawn.values(), width)


def comparison_chart(histories: Mapping[str, Sequence[Record]], *, width: int = WIDTH, most: int = 0) -> alt.VConcatChart:
    """Several runs on one axis of steps: a panel a dataset or metric, one colour a run; `most` points of each."""
    runs = list(islice(histories, MOST_RUNS))
    everything = [record for run in runs for record in histories[run]]
    records = [record for run in runs for record in _thinned(histories[run], most)]
    said = [_counted(everything, records)]
    names = series_names(records)
    drawn = dict(islice(names.items(), MOST_SERIES))
    marks = value_marks(records, drawn, everything)
    panels = [(name, [mark for mark in marks if mark["series"] == name]) for name in drawn.values()] or [("score", [])]
    said.append(_left_out(len(histories) - len(runs), "runs"))
    said.append(_left_out(len(names) - len(drawn), "datasets or metrics"))
    return _drawn(f"Evaluation history of {len(histories)} runs", said, records, panels, "run", runs, width)


def phases_chart(reports: Sequence[EvalReport], *, width: int = WIDTH) -> alt.Chart:
    """How long each phase of each point took, a bar a point."""
    from infra.chart_panels import phases_panel

    return phases_panel(phase_marks(reports), width=width, height=SMALL_HEIGHT)


def curve_png(run: str, records: Sequence[Record]) -> bytes:
    """The curve as a picture some 800 pixels wide; of very many points some are drawn, and all skips."""
    return _png(curve_chart(run, records, most=MOST_IN_PICTURE))


def comparison_png(histories: Mapping[str, Sequence[Record]]) -> bytes:
    """The comparison as a picture some 800 pixels wide; of very many points some are drawn, and all skips."""
    return _png(comparison_chart(histories, most=MOST_IN_PICTURE))


def _drawn(
    title: str, said: Iterable[str], records: Sequence[Record], panels: Panels, colour: str, colours: Iterable[str], width: int
) -> alt.VConcatChart:
    from infra.chart_panels import Axes, gaps_panel, stacked, values_panel

    gaps = gap_marks(records)
    steps = [record.point.step for record in records] or [0]
    axes = Axes(
        first=min(steps),
        last=max(steps),
        width=width,
        colour=colour,
        colours=tuple(colours),
        lines=tuple(lines_of(mark for _, marks in panels for mark in marks)),
    )
    charts: list[alt.Chart | alt.LayerChart] = []
    for number, (name, marks) in enumerate(panels):
        height = HEIGHT if number == 0 and (len(panels) == 1 or colour == "series") else SMALL_HEIGHT
        lowest = number == len(panels) - 1 and not gaps
        charts.append(values_panel(axes, number, marks, title=name, height=height, lowest=lowest))
    if gaps:
        charts.append(gaps_panel(axes, gaps))
    data: dict[str, Sequence[Mark]] = {f"values_{number}": marks for number, (_, marks) in enumerate(panels)}
    data |= {"gaps": gaps, "gap_steps": [{"step": step} for step in sorted({gap["step"] for gap in gaps})]}
    return stacked(axes, charts, title, [text for text in said if text], data)


def _counted(records: Sequence[Record], drawn: Sequence[Record]) -> str:
    skipped = sum(isinstance(record, SkippedPoint) for record in records)
    left_out = len(records) - len(drawn)
    parts = [_number(len(records) - skipped, "measured point") if records else "no points yet"]
    parts += [f"{len(drawn) - skipped} of them drawn"] * bool(left_out) + [f"{skipped} skipped"] * bool(skipped)
    attempts = sorted({record.point.attempt for record in records})
    if len(attempts) > MOST_LISTED:
        parts.append(f"{len(attempts)} attempts")
    elif len(attempts) > 1:
        parts.append(f"attempts {', '.join(map(str, attempts))}")
    return ", ".join(parts)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _left_out(count: int, what: str) -> str:
    return f"{count} further {what} are not drawn" if count > 0 else ""


def _thinned(records: Sequence[Record], most: int) -> Sequence[Record]:
    """The first and the newest point always stay."""
    measured = [record for record in records if isinstance(record, EvalReport)]
    if not most or len(measured) <= most:
        return records
    kept = {id(record) for record in (measured[0], *measured[:: -math.ceil(len(measured) / most)])}
    return [record for record in records if isinstance(record, SkippedPoint) or id(record) in kept]


def _png(chart: alt.VConcatChart) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(chart.to_dict(), scale=1.0))
