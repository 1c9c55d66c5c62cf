"""`pinpoint reevaluate` and `pinpoint retry`: what the schedule does, from a terminal; what was given up is tried again."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.asked import asked_black_box, asked_suite
from flows.given import SettingsOption, StoreOption, read_store, usable_settings
from flows.ledger_tables import ledger_table
from flows.rounds import reevaluate_once
from flows.terminal import reading_console
from infra.config import Settings, parse
from infra.errors import ConfigError
from infra.ledger import Entry, all_entries, entry, find_key, forgive, without_score
from infra.model import LedgerKey, Reevaluation, Suite
from infra.model.reevaluation import MARKERS
from infra.saved.round import Done
from infra.saved.survey import Found
from infra.store import Store
from trainer_integration.deliver import API_URL

out = Console()
FAILED = 1
POLL_S = 3.0
IN_ORDER = "Saved checkpoints, in the order of their evaluation"


def reevaluate(
    roots: Annotated[list[str], typer.Argument(metavar="ROOT...", help="folder, or s3://bucket/prefix, of saved checkpoints")],
    suite: Annotated[Path | None, typer.Option(help="YAML file: what to measure; a function may do without")] = None,
    order: Annotated[str, typer.Option(help="newest, step, spread (every k-th) or target")] = "newest",
    every: Annotated[int, typer.Option(min=1, help="for --order spread: every so manieth of each root")] = 5,
    target: Annotated[str | None, typer.Option(metavar="DATASET=SCORE", help="stop at the first that reaches it")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="evaluate at most so many")] = None,
    pattern: Annotated[str | None, typer.Option(help="regex for the path below ROOT; its group is the step")] = None,
    run: Annotated[str | None, typer.Option(help="run that the points join; default: the root's name")] = None,
    function: Annotated[str | None, typer.Option(help="a CheckpointEvalFn of your own: docs/black-box.md")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=YAML", help="a setting of the function")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="how many of the store wait or run at a time")] = 1,
    settle: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="how long one must be unchanged")] = 60.0,
    marker: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="file that says it is complete; again for more; default: the usual")
    ] = None,
    tries: Annotated[int, typer.Option(min=1, help="how often a failure that may pass is tried")] = 3,
    deadline: Annotated[float, typer.Option(metavar="SECONDS", help="one is skipped as 'timeout' after so long")] = 3600.0,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="accept checkpoints that bring code of their own")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list what would run, and what it would cost")] = False,
    port: Annotated[
        int | None, typer.Option("--port", help="port of the Prefect server; default 4200, or any free one")
    ] = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Evaluate saved checkpoints that have no report yet under this suite, and wait for them (docs/reevaluation.md)."""
    settings = usable_settings(settings_file, store)
    black_box = asked_black_box(function, set_ or [])
    loaded = asked_suite(suite, black_box)
    values = {
        "roots": roots,
        "pattern": pattern,
        "order": _order(order, every, target),
        "limit": limit,
        "where": {"run": run, "black_box": black_box, "deadline_s": deadline, "trust_remote_code": trust_remote_code},
        "care": {"settle_s": settle, "markers": tuple(marker or MARKERS), "tries": tries, "at_once": at_once},
    }
    asked = parse(Reevaluation, values, where="reevaluate")
    if dry_run:
        _, rows, told = reevaluate_once(asked, loaded, settings, settings.prefect_api_url or API_URL, dry_run=True)
        _show(IN_ORDER, rows, told)
        return
    from flows.stack import stack_of

    with ExitStack() as started:
        with out.status("Starting Prefect and Ray ..."):
            stack = started.enter_context(stack_of(settings, port=port, announce=False))
        failed = _until_done(asked, loaded, settings, stack.prefect_api_url)
    if failed:
        raise typer.Exit(FAILED)


def _order(by: str, every: int, target: str | None) -> dict[str, Any]:
    if target is None:
        return {"by": by, "every": every}
    dataset, _, score = target.partition("=")
    try:
        return {"by": by, "every": every, "target": {"dataset": dataset, "score": float(score)}}
    except ValueError:
        raise ConfigError(f"--target {target}: write DATASET=SCORE, for example sums=0.8") from None


def _until_done(asked: Reevaluation, suite: Suite, settings: Settings, api_url: str) -> bool:
    """Rounds until nothing is left for this command; whether one of what it submitted came to no report."""
    ours: set[str] = set()
    keys: dict[str, str] = {}
    store, waits = Store(settings.store), False
    while True:
        left = None if asked.limit is None else asked.limit - len(ours)
        done, rows, told = reevaluate_once(_limited(asked, left), suite, settings, api_url, dry_run=left == 0)
        submitted = () if left == 0 else done.submitted
        for one in submitted:
            out.print(f"step {one.saved.step}: submitted, {one.saved.location}", soft_wrap=True, highlight=False, markup=False)
        ours |= {one.saved.location for one in submitted}
        keys |= {one.saved.location: one.key for one in submitted}
        if done.full and not waits and not _ours_are_under_way(done, ours):
            out.print(f"Waiting: this store's re-evaluations that are under way are as many as --at-once {asked.care.at_once}.")
            waits = True
        unseen = [keys[place] for place in keys.keys() - {one.saved.location for one in done.found if one.state != "waits"}]
        if not _goes_on(asked, done, ours, exhausted=left == 0) and not any(_entry(store, key).under_way for key in unseen):
            break
        time.sleep(POLL_S)
    if left == 0:
        rows, told = [row for row in rows if row["place"] in ours], f"{len(ours)} checkpoints were evaluated, the limit."
    _show(IN_ORDER, rows, told)
    failed = any(one.saved.location in ours and one.state not in ("evaluated", "waits") for one in done.found)
    return failed or any(_entry(store, key).report is None for key in unseen)


def _entry(store: Store, key: str) -> Entry:
    """Of a checkpoint of ours that is in no scan any more, or is another one by now: what was submitted has its key."""
    return entry(store, LedgerKey.parse(key))


def _ours_are_under_way(done: Done, ours: set[str]) -> bool:
    return any(one.state == "under way" and one.saved.location in ours for one in done.found)


def _limited(asked: Reevaluation, left: int | None) -> Reevaluation:
    return asked.model_copy(update={"limit": left}) if left else asked


def _goes_on(asked: Reevaluation, done: Done, ours: set[str], *, exhausted: bool) -> bool:
    if done.reached is not None:
        return False

    def counts(one: Found) -> bool:
        if one.state == "under way":
            return one.saved.location in ours or asked.order.by == "target"
        return one.state in ("to do", "unread") and not exhausted and not _stopped(asked, done)

    return any(map(counts, done.found))


def _stopped(asked: Reevaluation, done: Done) -> bool:
    """A search that stands before a checkpoint which may still be written: a later command goes on."""
    seen = [one for one in done.found if one.state not in ("evaluated", "given up")]
    return asked.order.by == "target" and bool(seen) and seen[0].state == "waits"


def _show(title: str, rows: list[dict[str, str]], told: str) -> None:
    shown = reading_console()
    if rows:
        shown.print(ledger_table(shown, title, rows))
    shown.print(told, soft_wrap=True, highlight=False, markup=False)


def retry(
    key: Annotated[
        str | None, typer.Argument(help="key of the ledger, or its beginning; without it, what failed is listed")
    ] = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Let what was given up be tried again by the next trigger."""
    opened = read_store(settings_file, store)
    if key is not None:
        known = find_key(opened, key)
        forgive(opened, known)
        place = f": {known.last.claim.checkpoint}" if known.last and known.last.claim.checkpoint else ""
        said = f"{known.key.text} is tried again by the next `pinpoint reevaluate`, or schedule{place}"
        out.print(said, soft_wrap=True, markup=False)
        return
    failed = without_score(all_entries(opened))
    rows = [
        {
            "key": one.key.text,
            "step": str(one.last.claim.point.step) if one.last.claim.checkpoint else "–",
            "tries": str(len(one.tries)),
            "place": one.last.claim.checkpoint or "–",
            "why": one.last.why,
        }
        for one in failed
        if one.last
    ]
    told = (
        f"{len(rows)} keys have no report. `pinpoint retry KEY` has one tried again."
        if rows
        else f"Nothing has failed in {opened.url}."
    )
    _show("What has no report", rows, told)
