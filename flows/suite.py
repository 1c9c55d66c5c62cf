"""`pinpoint suite`: what a suite asks, what its digest is, and every row of its data that can't be used."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from flows.given import SettingsOption
from flows.terminal import error_line, plain_long
from infra.config import load_settings
from infra.datasets import read_problems, suite_digest
from infra.datasets.loading import called
from infra.errors import ConfigError, DatasetError
from infra.model import DatasetSpec, Problem, Suite
from infra.suite_files import find_suite, load_suite
from infra.suites import ready_suites

app = typer.Typer(no_args_is_help=True, help="Show, check and identify what is measured.")
out, err = Console(), Console(stderr=True)
FAILED = 1
SHOWN_BAD_ROWS = 20
SuiteArgument = Annotated[str, typer.Argument(metavar="FILE_OR_NAME", help="YAML file, or the name of a ready suite")]


@app.command()
def show(
    suite: Annotated[str | None, typer.Argument(metavar="[FILE_OR_NAME]", help="without it, the ready suites")] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="print the file itself, to be saved and changed")] = False,
    settings_file: SettingsOption = None,
) -> None:
    """Show how each dataset of a suite is asked and graded, and its first problem."""
    load_settings(settings_file).export_s3()
    if suite is None:
        _print(Text("\n".join(ready_suites())))
    elif as_yaml:
        _print(Text(find_suite(suite)[0].read_text(encoding="utf-8").rstrip()))
    else:
        for dataset in load_suite(suite).datasets:
            for line in _described(dataset):
                _print(line)


@app.command()
def digest(suite: SuiteArgument, settings_file: SettingsOption = None) -> None:
    """Print the digest of a suite: it changes with its data, prompts, sampling and graders, and not with their places."""
    load_settings(settings_file).export_s3()
    _print(Text(suite_digest(load_suite(suite))))


@app.command()
def validate(suite: SuiteArgument, settings_file: SettingsOption = None) -> None:
    """Read all data of a suite, and name the first rows of each dataset that can't be used."""
    load_settings(settings_file).export_s3()
    loaded = load_suite(suite)
    unusable = sum([_validated(dataset) for dataset in loaded.datasets])
    if unusable:
        _print(Text(f"Suite {loaded.name} can't be evaluated: {unusable} of its datasets have faults.", style="bold red"))
        raise typer.Exit(FAILED)
    _print(Text(f"Suite {loaded.name} is valid, digest {_digest_of(loaded)}.", style="bold green"))


def _validated(dataset: DatasetSpec) -> bool:
    """Prints what was found; true if the dataset can't be evaluated as it is."""
    bad: list[DatasetError] = []
    problems, failure = 0, None
    try:
        for _ in read_problems(dataset.model_copy(update={"on_bad_row": "skip"}), bad.append):
            problems += 1
    except ConfigError as error:
        failure = error
    passed_over = f", {len(bad)} bad rows" if bad else ""
    _print(Text(f"{dataset.name}: {problems} problems{passed_over}"))
    for fault in [*bad[:SHOWN_BAD_ROWS], *([failure] if failure else [])]:
        _print(Text(f"  {plain_long(str(fault))}", style="red"))
    if len(bad) > SHOWN_BAD_ROWS:
        _print(Text(f"  and {len(bad) - SHOWN_BAD_ROWS} more", style="red"))
    return failure is not None or (bool(bad) and dataset.on_bad_row == "fail")


def _described(dataset: DatasetSpec) -> list[Text]:
    given = dataset.model_dump(mode="json", exclude_unset=True, exclude={"name", "source", "grader", "sampling"})
    sampling = dataset.sampling.model_dump(mode="json", exclude_defaults=True)
    lines = [Text(dataset.name, style="bold"), Text(f"  source: {called(dataset)}"), Text(f"  grader: {_grader(dataset)}")]
    lines.append(Text(f"  sampling: {', '.join(f'{key} {value}' for key, value in sampling.items()) or 'greedy'}"))
    lines += [Text(f"  {key}: {value!r}") for key, value in given.items()]
    first = _first(dataset)
    return [*lines, Text(f"  first problem, {first.id}:\n{_indented(first.prompt)}\n  its answer: {first.answer}")]


def _grader(dataset: DatasetSpec) -> str:
    settings = dataset.grader.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    return ", ".join([dataset.grader.name, *(f"{key} {value!r:.80}" for key, value in settings.items())])


def _first(dataset: DatasetSpec) -> Problem:
    return next(read_problems(dataset))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _digest_of(suite: Suite) -> str:
    """What can't be graded here is told, and no reason to call the data bad."""
    try:
        return suite_digest(suite)
    except ConfigError as error:
        error_line(err, str(error))
        raise typer.Exit(FAILED) from None


def _print(text: Text) -> None:
    out.print(text, soft_wrap=True, highlight=False)
