"""The `pinpoint` command. Bad input is one line that names the thing and the remedy, and exit code 2; never a traceback."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from typer.exceptions import TyperException

from flows import fleet
from flows import suite as suite_commands
from flows.asked import asked_black_box, asked_suite, delivery_of, named_by, point_of, submit_and_wait
from flows.compare import compare
from flows.doctor import doctor
from flows.gate import gate
from flows.given import SettingsOption, StoreOption, usable_settings
from flows.history import show_history
from flows.history_tables import points
from flows.progress import progress_shown
from flows.reevaluate import reevaluate, retry
from flows.replay import replay
from flows.report import report
from flows.terminal import error_line, reading_console, scores
from flows.tidying import deliver, reclaim
from infra.config import Settings, load_settings
from infra.errors import ConfigError, PinpointError, TrainingFailed
from infra.model import EvalPoint, EvalReport, EvalRequest, FleetSpec, SkippedPoint, SnapshotSource
from infra.presentation import curve_key, history_key
from infra.records import find, history, next_attempt, runs
from infra.snapshot import validate
from infra.store import Store
from infra.validation.adapters import is_adapter
from infra.validation.readers import LocalFolder
from infra.validation.resolve import resolve_checkpoint

if TYPE_CHECKING:
    from flows.demo import DemoOptions

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Evaluate the snapshots of a model while it is being trained, and prove which weights were measured.",
)
out, err = Console(), Console(stderr=True)
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

PortOption = Annotated[int | None, typer.Option("--port", help="port of the Prefect server; default 4200, or any free one")]


@app.command()
def demo(
    run: Annotated[str | None, typer.Option(help="name of the run; default: made of date and time")] = None,
    steps: Annotated[int, typer.Option(min=1, help="RL steps after the warm-up")] = 120,
    every: Annotated[int, typer.Option(min=1, help="steps between points")] = 20,
    seed: Annotated[int, typer.Option(help="of the model, the data and the rollouts")] = 0,
    small: Annotated[bool, typer.Option("--small", help="a model too small to learn: a quick run of the same path")] = False,
    keep_checkpoints: Annotated[
        Path | None, typer.Option(help="folder in which the model is saved at each point, for `pinpoint evaluate`")
    ] = None,
    exit_: Annotated[bool, typer.Option("--exit", help="end when done, instead of showing the UI until Ctrl-C")] = False,
    port: PortOption = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Train a tiny model by asynchronous RL and evaluate it on the way, for real, on this machine."""
    from flows.demo import DemoOptions, new_run_name

    settings = usable_settings(settings_file, store)
    run = EvalPoint(run=run or new_run_name(), step=0).run
    if run in runs(Store(settings.store)):
        raise ConfigError(f"run {run!r} is in {settings.store} already: choose another name with --run")
    problems = 40 if small else 400
    options = DemoOptions(
        run=run, steps=steps, every=every, seed=seed, small=small, problems=problems, keep_checkpoints=keep_checkpoints
    )
    _run_demo(options, settings, port, stay=sys.stdin.isatty() and not exit_)


def _run_demo(options: DemoOptions, settings: Settings, port: int | None, *, stay: bool) -> None:
    """The demo between the start of its services and their end, after which nothing of it is left but its records."""
    from flows.demo import artifact_url, run_demo, sweep
    from flows.stack import stack_of

    run, owned = options.run, True
    try:
        with ExitStack() as started:
            with out.status("Starting Prefect, Ray and the runner of flows ..."):
                stack = started.enter_context(stack_of(settings, port=port))
            owned = stack.owned
            out.print(f"Prefect UI: {stack.ui_url}   run: {run}", soft_wrap=True)
            run_demo(options, settings, stack, out)
            out.print(points(run, history(Store(settings.store), run), out))
            out.print(f"History in the UI: {artifact_url(stack, history_key(run))}", soft_wrap=True)
            out.print(f"Its curve:         {artifact_url(stack, curve_key(run))}", soft_wrap=True)
            out.print(f"Its points:        {stack.ui_url}/v2/runs?tags=run:{run}", soft_wrap=True)
            later = f"`pinpoint history {run}`, `pinpoint report {run}`, and `pinpoint up` for the UI"
            out.print(f"Later: {later}.", soft_wrap=True)
            if stay:
                out.print("The UI stays up until Ctrl-C.")
                signal.pause()
    finally:
        if owned:
            sweep(run, settings)


@app.command()
def up(
    with_automations: Annotated[
        bool, typer.Option("--with-automations", help="register examples of automations: docs/deploy.md")
    ] = False,
    notify: Annotated[
        str | None, typer.Option(metavar="TYPE/NAME", help="the Prefect block by which they notify, as slack-webhook/ops")
    ] = None,
    port: PortOption = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Run Prefect, Ray and the runner of flows on this machine until Ctrl-C."""
    from flows.stack import stack_of

    if notify and not with_automations:
        raise ConfigError(f"--notify {notify} is for automations: give --with-automations too")
    settings = usable_settings(settings_file, store)
    with ExitStack() as started:
        with out.status("Starting Prefect, Ray and the runner of flows ..."):
            stack = started.enter_context(stack_of(settings, port=port))
        if not stack.owned:
            raise ConfigError(f"a stack runs already for {settings.home}: its UI is at {stack.ui_url}")
        out.print(f"Prefect UI: {stack.ui_url}   Ray: {stack.ray_address}   store: {settings.store}", soft_wrap=True)
        if with_automations:
            from flows.automations import register

            out.print(f"Automations: {'; '.join(asyncio.run(register(notify)))}", soft_wrap=True)
        out.print("Until Ctrl-C.")
        signal.pause()


@app.command()
def evaluate(
    checkpoint: Annotated[str, typer.Argument(help="folder in Hugging Face layout, or cached hub id; it is never changed")],
    suite: Annotated[Path | None, typer.Option(help="YAML file, or a ready suite's name; a function may do without")] = None,
    function: Annotated[str | None, typer.Option(help="a CheckpointEvalFn of your own: docs/black-box.md")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=YAML", help="a setting of the function")] = None,
    base: Annotated[str | None, typer.Option(help="of a LoRA adapter: its base; default: what its config names")] = None,
    run: Annotated[str | None, typer.Option(help="run that the point belongs to; default: the folder's name")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="step of the point; default: the number in the folder's name")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="accept a checkpoint that brings code of its own")
    ] = False,
    port: PortOption = None,
    store: StoreOption = None,
    settings_file: SettingsOption = None,
) -> None:
    """Evaluate one checkpoint."""
    from flows.stack import stack_of

    settings = usable_settings(settings_file, store)
    black_box = asked_black_box(function, set_ or [])
    loaded = asked_suite(suite, black_box)
    if checkpoint.startswith("s3://"):
        raise ConfigError(f"{checkpoint}: checkpoints in object storage are evaluated by `pinpoint reevaluate {checkpoint}`")
    folder = resolve_checkpoint(checkpoint).resolve()
    if not is_adapter(LocalFolder(folder)):
        validate(folder)
    point = point_of(named_by(checkpoint, folder), run, step)
    with ExitStack() as started:
        with out.status("Starting Prefect and Ray ..."):
            stack = started.enter_context(stack_of(settings, port=port, announce=False))
        request = EvalRequest(
            point=replace(point, attempt=next_attempt(Store(settings.store), point.run)),
            source=SnapshotSource(path=str(folder), staged=False, base=base),
            suite=loaded,
            fleet=FleetSpec() if black_box else settings.fleet,
            black_box=black_box,
            store_url=settings.store,
            trust_remote_code=trust_remote_code,
        )
        delivery = delivery_of(request)
        with progress_shown(delivery, stack.prefect_api_url, out):
            submit_and_wait(request, delivery, settings, stack.prefect_api_url)
    record = find(Store(settings.store), request.point, loaded.name)
    if isinstance(record, EvalReport):
        shown = reading_console()
        shown.print(scores(record, shown))
        out.print(f"History: `pinpoint history {request.point.run}`; in the UI of `pinpoint up` under {stack.ui_url}")
        return
    message = f"{record.reason}: {record.message}" if isinstance(record, SkippedPoint) else "no record was written"
    error_line(err, f"{request.point.name} was skipped, {message}")
    raise typer.Exit(FAILED)


@app.command()
def check(
    checkpoint: Annotated[str, typer.Argument(help="folder, hub id in the local cache, or s3://bucket/prefix")],
    chat_template: Annotated[bool, typer.Option("--chat-template", help="refuse one without a chat template")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="let it bring code of its own; none is run here")
    ] = False,
    base: Annotated[str | None, typer.Option(help="of a LoRA adapter: its base; default: what its config names")] = None,
    settings_file: SettingsOption = None,
) -> None:
    """Say whether a checkpoint is complete and sane, what is wrong with it, and how to mend that."""
    from flows.check import check_checkpoint

    load_settings(settings_file).export_s3()
    asked = {"needs_chat_template": chat_template, "trust_remote_code": trust_remote_code}
    if not check_checkpoint(checkpoint, out, base=base, **asked):
        raise typer.Exit(FAILED)


app.command(name="history")(show_history)
app.command()(report)
app.command()(compare)
app.command()(gate)
app.command()(reevaluate)
app.command()(retry)
app.command()(replay)
app.add_typer(fleet.app, name="fleet")
app.add_typer(suite_commands.app, name="suite")
app.command()(reclaim)
app.command()(deliver)
app.command()(doctor)


def main() -> None:
    """Entry point: maps errors to exit codes, and lets Ctrl-C and SIGTERM unwind everything exactly once."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with _unwinding_once():
        try:
            sys.exit(app(standalone_mode=False) or 0)
        except PinpointError as error:
            error_line(err, str(error))
            sys.exit(FAILED if isinstance(error, TrainingFailed) else BAD_INPUT)
        except (KeyboardInterrupt, typer.Abort):
            sys.exit(INTERRUPTED)
        except TyperException as error:
            error_line(err, f"{error.format_message()} `pinpoint --help` lists what there is.")
            sys.exit(BAD_INPUT)


@contextmanager
def _unwinding_once() -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the work; later ones can't break the clean-up that follows."""
    stopping = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        if not stopping.is_set():
            stopping.set()
            err.print("Stopping what was started ...")
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:  # all is unwound; at its end the interpreter would put back handlers that kill
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
