"""`pinpoint deliver`: what trainers on this machine left is delivered, and each point of it is told."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from flows.stack import api_url_of
from infra.config import Settings
from trainer_integration.deliver import deliver_left


def deliver_and_tell(settings: Settings, wait_s: float, console: Console) -> bool:
    """True if nothing waits, nothing was refused, and there is no file that can't be read."""
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    left = deliver_left(settings.model_copy(update={"prefect_api_url": api_url_of(settings)}), wait_s)
    for what, deliveries in (("delivered", left.delivered), ("refused", left.refused), ("still waiting", left.waiting)):
        for delivery in deliveries:
            skip = f" as skipped, {delivery.skip.reason}: {delivery.skip.message}" if delivery.skip else ""
            say(f"{what}: {delivery.name}{skip}")
    for file in left.unreadable:
        say(f"can't be read: {file}; delete it when you have seen to it")
    counts = f"{len(left.delivered)} delivered, {len(left.refused)} refused, {len(left.waiting)} still waiting"
    say(f"{counts}; {len(left.settled)} were lost by a trainer that was killed.")
    return not (left.waiting or left.refused or left.unreadable)
