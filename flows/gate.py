"""`pinpoint gate`: whether a point is good enough beside another, for CI: 0 it is, 1 it is not, 3 that can't be told.

It passes only if the whole 95% interval of the paired difference is at least the least difference allowed, and fails only if
the whole interval is below it. The point must have a snapshot of its own: what it is, the gate says, and can be told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from json import dumps
from typing import Annotated, Literal, NoReturn

import typer
from rich.console import Console

from flows.comparable import Pair, Place, pair_of
from flows.given import SettingsOption, StoreOption, read_store
from flows.terminal import plain_long
from infra.comparing import PromptScores
from infra.comparing import compare as compare_dataset
from infra.errors import ConfigError, PinpointError, PointSkipped
from infra.model import Comparison
from infra.wording import comparison_notes, difference_text

logger = logging.getLogger(__name__)
out = Console()
Verdict = Literal["pass", "fail", "inconclusive"]
EXIT: dict[Verdict, int] = {"pass": 0, "fail": 1, "inconclusive": 3}
BROKEN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One dataset of the gate: the difference from the other point, and what it says of the least difference allowed."""

    comparison: Comparison
    verdict: Verdict
    reason: str = ""


def gate(
    point: Annotated[str, typer.Argument(metavar="RUN@STEP", help="the point that has to be good enough; RUN@STEP:ATTEMPT")],
    against: Annotated[str, typer.Option(metavar="RUN@STEP", help="the point that it is compared with")],
    min_delta: Annotated[
        float, typer.Option(min=-1, max=1, help="least difference of mean scores allowed; below 0: a loss that is accepted")
    ] = 0.0,
    snapshot: Annotated[
        str | None, typer.Option(help="digest of the weights that must have been measured, or its beginning")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="name of the suite, if the points have several in common")] = None,
    dataset: Annotated[str | None, typer.Option(help="only this one; default: each has to pass")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Say whether a point is good enough: exit code 0 if it is, 1 if it is not, 3 if that can't be told."""
    with _no_verdict_by_accident():
        opened, asked, other = read_store(settings_file, store), Place.of(point), Place.of(against)
        try:
            pair = pair_of(opened, other, asked, suite, dataset, gate=True)
        except PointSkipped as error:
            _end("inconclusive", str(error), [], None, as_json)
        _require(pair, snapshot)
        scores = PromptScores(opened, pair.first.suite)
        compared = (compare_dataset(scores, pair.second, pair.first, name, "asked") for name in pair.datasets)
        judged = [judge(one, min_delta) for one in compared]
        told = f"{point} (snapshot {pair.second.snapshot_digest}) against {against} (snapshot {pair.first.snapshot_digest})"
        _end(overall(judged), f"{told}, at least {min_delta:+g}, suite {pair.first.suite}", judged, pair, as_json)


@contextmanager
def _no_verdict_by_accident() -> Iterator[None]:
    """Python ends with 1 on an error that nobody foresaw; here 1 is a verdict, so that is told from it."""
    try:
        yield
    except (PinpointError, typer.Exit):
        raise
    except Exception as error:
        logger.exception("the gate failed, which says nothing of the point")
        raise typer.Exit(BROKEN) from error


def _require(pair: Pair, asked: str | None) -> None:
    """Raises ConfigError unless the point has weights of its own that are known, and are those that were asked for."""
    measured, name = pair.second.snapshot_digest, pair.second.point.name
    if measured is None:
        raise ConfigError(f"{name} was measured on live engines, whose content nobody has proved: gate a snapshot's point")
    if asked is not None and (len(asked) < 8 or not measured.startswith(asked.lower())):
        raise ConfigError(f"{name} has measured snapshot {measured}, not {asked} (at least 8 digits of the digest)")
    if measured == pair.first.snapshot_digest:
        raise ConfigError(
            f"{name} has the same weights as {pair.first.point.name}, {measured}: a baseline can't satisfy its gate"
        )


def overall(judged: Sequence[Judged]) -> Verdict:
    """One dataset that fails is enough to fail; each has to pass."""
    verdicts = {one.verdict for one in judged}
    return "fail" if "fail" in verdicts else "pass" if verdicts == {"pass"} else "inconclusive"


def judge(comparison: Comparison, least: float) -> Judged:
    """By the whole interval; without one nothing can be told."""
    found = comparison.difference
    if found is None:
        return Judged(comparison=comparison, verdict="inconclusive", reason=comparison.reason)
    if found.low is None or found.high is None:
        return Judged(comparison=comparison, verdict="inconclusive", reason=found.note or "it has no interval")
    verdict: Verdict = "pass" if found.low >= least else "fail" if found.high < least else "inconclusive"
    return Judged(comparison=comparison, verdict=verdict)


def _end(verdict: Verdict, told: str, judged: list[Judged], pair: Pair | None, as_json: bool) -> NoReturn:
    """Prints, and ends the command with the verdict's code."""
    notes = [*(note for one in judged for note in comparison_notes(one.comparison)), *(pair.notes if pair else ())]
    if as_json:
        rows = [
            {
                "dataset": one.comparison.dataset,
                "verdict": one.verdict,
                "reason": one.reason,
                "difference": asdict(one.comparison.difference) if one.comparison.difference else None,
            }
            for one in judged
        ]
        required = pair.second.snapshot_digest if pair else None
        print(dumps({"verdict": verdict, "gate": told, "snapshot": required, "datasets": rows, "notes": notes}, indent=1))
        raise typer.Exit(EXIT[verdict])
    _say(f"{verdict}: {told}")
    for one in judged:
        found = one.comparison.difference
        number = f"{difference_text(found)}, {found.n} prompts" if found else "no difference"
        because = f" ({one.reason})" if one.reason else ""
        _say(f"{one.comparison.dataset}: {one.verdict}, {number}{because}")
    for note in notes:
        _say(f"* {note}")
    raise typer.Exit(EXIT[verdict])


def _say(line: str) -> None:
    out.print(plain_long(line), soft_wrap=True, highlight=False, markup=False)
