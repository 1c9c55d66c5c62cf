"""The panels that a chart of a run is made of. Importing this takes as long as altair does: `infra.charts` does it late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from infra.curve_marks import Mark
from infra.wording import NONE

FEW_STEPS = 40  # with more of them points are small, and bars faint
ROW_HEIGHT = 18
RED = "#b91c1c"
_OF_VALUE = {
    "series": "dataset",
    "run": "run",
    "step": "step",
    "text": "score [95% interval]",
    "asked": "asked",
    "previous": "vs previous",
    "lag": "lag (steps)",
    "missed": "stands for steps",
    "attempt": "attempt",
    "suite": "suite",
    "weights": "weights",
}
_OF_GAP = {
    "run": "run",
    "step": "step",
    "what": "what",
    "reason": "reason",
    "why": "why",
    "attempt": "attempt",
    "suite": "suite",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What all panels of a chart share: the steps they span, and what a colour (and a shape) stands for."""

    first: int
    last: int
    width: int
    colour: str
    colours: tuple[str, ...]
    lines: tuple[str, ...]

    def x(self, *, labelled: bool = True) -> alt.X:
        margin = max(1.0, (self.last - self.first) * 0.02)
        scale = alt.Scale(domain=[self.first - margin, self.last + margin], nice=False, zero=False)
        axis = alt.Axis(labels=labelled, ticks=labelled, format="d", grid=False)
        if self.last - self.first <= 10:  # there ticks would stand between two steps
            axis.values = list(range(self.first, self.last + 1))
        return alt.X("step:Q", title="step" if labelled else None, scale=scale, axis=axis)

    def color(self) -> alt.Color:
        scheme: Literal["tableau10", "tableau20"] = "tableau10" if len(self.colours) <= 10 else "tableau20"
        legend = alt.Legend(orient="right", labelLimit=160, symbolType="circle", symbolOpacity=1, symbolLimit=0)
        return alt.Color(f"{self.colour}:N", title=None, scale=alt.Scale(domain=self.colours, scheme=scheme), legend=legend)

    def shapes(self) -> dict[str, Any]:
        """Attempts of a resumed run are told apart by their points' shapes."""
        if len(self.lines) < 2:
            return {}
        return {"shape": alt.Shape("line:N", title="attempt", scale=alt.Scale(domain=self.lines))}


def values_panel(axes: Axes, number: int, marks: Sequence[Mark], *, title: str, height: int, lowest: bool) -> alt.LayerChart:
    """Lines through the values by step, each value with its interval; dashed uprights where something has none."""
    values = _of_values(axes, number, marks, lowest) if marks else [_nothing()]
    head = alt.TitleParams(title, anchor="start", frame="group", fontSize=11, offset=4, limit=axes.width)
    return alt.LayerChart(layer=[_uprights(axes, lowest), *values], width=axes.width, height=height, title=head)


def _of_values(axes: Axes, number: int, marks: Sequence[Mark], lowest: bool) -> list[alt.Chart]:
    many = len({mark["step"] for mark in marks}) > FEW_STEPS
    scale = alt.Scale(zero=False, nice=True, padding=8)
    y = alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(tickCount=5))
    low = alt.Y("low:Q", title=None)
    base = alt.Chart(alt.NamedData(name=f"values_{number}")).encode(x=axes.x(labelled=lowest), color=axes.color())
    line = base.mark_line(strokeWidth=1.5).encode(y=y, detail=["series:N", "run:N", "line:N"], opacity=_picked(0.9))
    bars = base.mark_rule(strokeWidth=1 if many else 2).encode(y=low, y2="high:Q", opacity=_picked(0.25 if many else 0.55))
    points = base.mark_point(filled=True, size=16 if many else 50, opacity=1).encode(
        y=y, opacity=_picked(1.0), tooltip=_tooltip(_OF_VALUE, marks), **axes.shapes()
    )
    with_interval = alt.FieldValidPredicate(field="low", valid=True)
    return [bars.transform_filter(with_interval), line, points.properties(name=f"points_{number}")]


def gaps_panel(axes: Axes, gaps: Sequence[Mark]) -> alt.Chart:
    """A cross at each place that has no value, a row a reason."""
    rows = list(dict.fromkeys(mark["row"] for mark in gaps))
    axis = alt.Axis(grid=True, ticks=False, labelLimit=150, labelColor=RED, domain=False)
    colour = axes.color() if axes.colour == "run" else alt.value(RED)
    panel = alt.Chart(alt.NamedData(name="gaps"), name="gaps", width=axes.width, height=ROW_HEIGHT * len(rows))
    crosses: alt.Chart = panel.mark_point(shape="cross", filled=True, size=70, angle=45, opacity=1).encode(
        x=axes.x(), y=alt.Y("row:N", title=None, sort=rows, axis=axis), color=colour, tooltip=_tooltip(_OF_GAP, gaps)
    )
    return crosses


def phases_panel(marks: Sequence[Mark], *, width: int, height: int) -> alt.Chart:
    """A bar a point, a colour a phase, stacked in the order in which they followed each other."""
    points, phases = (list(dict.fromkeys(mark[key] for mark in marks)) for key in ("point", "phase"))
    colour = alt.Color(
        "phase:N", title=None, sort=phases, scale=alt.Scale(scheme="tableau10"), legend=alt.Legend(symbolLimit=0)
    )
    bars = alt.Chart(alt.NamedData(name="phases"), width=width, height=height).mark_bar()
    made: alt.Chart = bars.encode(
        x=alt.X(
            "point:N", title="point", sort=points, axis=alt.Axis(labelLimit=120, labelAngle=0 if len(points) <= 12 else -90)
        ),
        y=alt.Y("seconds:Q", title="seconds"),
        color=colour,
        order=alt.Order("order:Q"),
        tooltip=[alt.Tooltip(key, type="nominal") for key in ("point", "phase", "seconds")],
    )
    made.datasets = {"phases": list(marks)}
    return made


def stacked(
    axes: Axes,
    panels: Sequence[alt.Chart | alt.LayerChart],
    title: str,
    subtitle: Sequence[str],
    data: Mapping[str, Sequence[Mark]],
) -> alt.VConcatChart:
    """The panels below each other, moved and zoomed as one; `data` are the marks that they name."""
    head = alt.TitleParams(title, subtitle=list(subtitle), anchor="start", offset=12, subtitleColor="#4b5563")
    chart: alt.VConcatChart = alt.VConcatChart(vconcat=panels, spacing=10, title=head)
    chart = chart.resolve_scale(color="shared", shape="shared").configure(background="white", font="sans-serif")
    chart = chart.configure_view(stroke="#d1d5db")
    views = [name for panel in panels for name in _view_names(panel)]
    chart.params = [_zoom(views), *_picking(axes, views)] if views else []
    chart.datasets = {name: list(marks) for name, marks in data.items()}  # by name: altair would copy them many times
    return chart


def _view_names(panel: alt.Chart | alt.LayerChart) -> list[str]:
    parts = panel.layer if isinstance(panel, alt.LayerChart) else [panel]
    return [part.name for part in parts if isinstance(part.name, str)]


def _zoom(views: list[str]) -> alt.TopLevelSelectionParameter:
    """Steps are moved by dragging, and zoomed with shift and the wheel, which alone goes on scrolling the page."""
    select = alt.IntervalSelectionConfig(type="interval", encodings=["x"], zoom="wheel![event.shiftKey]")
    return alt.TopLevelSelectionParameter(name="zoom", select=select, bind="scales", views=views)


def _picking(axes: Axes, views: list[str]) -> list[alt.TopLevelSelectionParameter]:
    """A click on the legend leaves the others in the background."""
    select = alt.PointSelectionConfig(type="point", fields=[axes.colour])
    points = [name for name in views if name != "gaps"]
    return [alt.TopLevelSelectionParameter(name="picked", select=select, bind="legend", views=points)] if points else []


def _picked(opacity: float) -> alt.OpacityValue:
    return alt.OpacityValue(0.08, condition={"param": "picked", "value": opacity})


def _uprights(axes: Axes, lowest: bool) -> alt.Chart:
    rule = alt.Chart(alt.NamedData(name="gap_steps")).mark_rule(strokeDash=[2, 3], color=RED, opacity=0.4)
    made: alt.Chart = rule.encode(x=axes.x(labelled=lowest))
    return made


def _nothing() -> alt.Chart:
    text = alt.Chart(alt.InlineData(values=[{}])).mark_text(color="#6b7280", fontSize=14)
    made: alt.Chart = text.encode(text=alt.value("nothing has a score yet"))
    return made


def _tooltip(names: Mapping[str, str], marks: Sequence[Mark]) -> list[alt.Tooltip]:
    """What tells the marks apart, or says something of at least one."""
    known = {key for mark in marks for key, value in mark.items() if value not in ("", NONE)}
    alike = {key for key in ("run", "suite", "attempt") if len({mark[key] for mark in marks}) == 1}
    return [alt.Tooltip(key, type="nominal", title=title) for key, title in names.items() if key in known - alike]
