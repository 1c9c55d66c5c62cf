"""`pinpoint check`: what was looked at, all that is wrong, and how to mend it, before anybody takes a GPU for it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from flows.terminal import plain_long
from infra.validation.examination import Verdict, examine
from infra.validation.resolve import open_checkpoint


def check_checkpoint(
    checkpoint: str, console: Console, *, needs_chat_template: bool, trust_remote_code: bool, base: str | None = None
) -> bool:
    """Prints the verdict; true if nothing is wrong. Raises PinpointError for what is no checkpoint at all."""
    reader = open_checkpoint(checkpoint)
    with console.status(f"Checking {reader.location} ..."):
        verdict = examine(reader, needs_chat_template=needs_chat_template, trust_remote_code=trust_remote_code, base=base)
    for line in _lines(verdict):
        console.print(line, soft_wrap=True, highlight=False)
    return not verdict.faults


def _lines(verdict: Verdict) -> list[Text]:
    size = f"{len(verdict.files)} files, {verdict.n_tensors} tensors, {verdict.n_bytes:,} bytes"
    lines = [Text(f"Checked {verdict.location}: {size}")]
    lines += [
        Text.assemble((f"  {type(fault).__name__}  ", "bold red"), f"{fault.subject}\n    {plain_long(str(fault))}")
        for fault in verdict.faults
    ]
    lines += [Text.assemble(("  not checked  ", "yellow"), plain_long(note)) for note in verdict.notes]
    count = len(verdict.faults)
    if count:
        return [*lines, Text(f"Invalid: {count} {'fault' if count == 1 else 'faults'}.", style="bold red")]
    return [*lines, Text("Valid.", style="bold green")]
