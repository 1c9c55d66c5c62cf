"""Curves as small pictures inside a page: of bounded size and bounded cost, however long a run is.

Prefect keeps an artifact as one row of its database, and every version of it for ever.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from io import BytesIO

from infra.charts import MOST_SERIES, comparison_png, curve_png
from infra.model import EvalReport, SkippedPoint

logger = logging.getLogger(__name__)
Record = EvalReport | SkippedPoint
MOST_MARKS = 600  # values that are drawn: about a second of one core
MOST_BYTES = 40_000  # of a picture, which is a third more as a data: URL
_COLOURS = (64, 16)


def curve_image(run: str, records: Sequence[Record]) -> tuple[str, str]:
    """A data: URL, and what it leaves out, in words; "" for a picture that would be too large."""
    kept, note = thinned(records, MOST_MARKS)
    return _data_url(curve_png(run, kept)), note


def comparison_image(histories: Mapping[str, Sequence[Record]]) -> tuple[str, str]:
    """As `curve_image`, of several runs on one axis."""
    kept = {run: thinned(records, MOST_MARKS // max(1, len(histories))) for run, records in histories.items()}
    notes = {note for _, note in kept.values() if note}
    note = "Not every point of each run is drawn." if notes else ""
    return _data_url(comparison_png({run: records for run, (records, _) in kept.items()})), note


def thinned(records: Sequence[Record], most_marks: int) -> tuple[list[Record], str]:
    """At most so many values, and at most so many skips, each evenly chosen with the first and the last; a note says so."""
    measured = [place for place, record in enumerate(records) if isinstance(record, EvalReport)]
    skipped = [place for place, record in enumerate(records) if isinstance(record, SkippedPoint)]
    each = min(MOST_SERIES, max((_values(record) for record in records), default=1))
    kept = sorted(_evenly(measured, most_marks // max(1, each)) | _evenly(skipped, most_marks))
    note = "" if len(kept) == len(records) else f"{len(kept)} of {len(records)} points are drawn, evenly chosen."
    return [records[place] for place in kept], note


def _evenly(places: Sequence[int], most: int) -> set[int]:
    """At least two of them, the first and the last."""
    most = max(2, most)
    if len(places) <= most:
        return set(places)
    return {places[round(nth * (len(places) - 1) / (most - 1))] for nth in range(most)}


def _values(record: Record) -> int:
    return len(record.results) + len(record.metrics) if isinstance(record, EvalReport) else 1


def _data_url(png: bytes) -> str:
    """The picture in few colours: a chart has no more, and is then a fifth as large."""
    for colours in _COLOURS:
        small = _in_colours(png, colours)
        if len(small) <= MOST_BYTES:
            return f"data:image/png;base64,{base64.b64encode(small).decode()}"
    logger.warning("a curve of %d bytes is too large to be shown", len(small))
    return ""


def _in_colours(png: bytes, count: int) -> bytes:
    from PIL import Image

    made = BytesIO()
    with Image.open(BytesIO(png)) as image:
        image.convert("RGB").quantize(count, dither=Image.Dither.NONE).save(made, "PNG", optimize=True)
    return made.getvalue()
