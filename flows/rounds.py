"""One round of re-evaluation with what people are told of it: the same for the flow and for the command."""

from __future__ import annotations

from flows.sending import Sender
from infra.config import Settings
from infra.errors import ConfigError
from infra.model import Reevaluation, Suite
from infra.saved.costs import costs
from infra.saved.round import Done, run_round
from infra.saved.rows import found_rows, summary
from infra.saved.survey import Survey
from infra.store import Store
from trainer_integration.prefect_api import PrefectApi


def reevaluate_once(
    asked: Reevaluation, suite: Suite, settings: Settings, api_url: str, dry_run: bool = False
) -> tuple[Done, list[dict[str, str]], str]:
    """What was done, a row a checkpoint, and a line that sums it up. Raises ConfigError, StoreError, ServiceUnreachable."""
    if not suite.datasets and asked.where.black_box is None:
        raise ConfigError(f"suite {suite.name} has no datasets: there is nothing to measure")
    store, fleet, api = Store(settings.store), asked.where.fleet or settings.fleet, PrefectApi(api_url)
    try:
        sender = Sender(api)
        survey = Survey.of(store, asked, suite, fleet, sender.gone, sender.server)
        done = run_round(survey, fleet, sender.send, limit=asked.limit, only_look=dry_run)
    finally:
        api.close()
    known = costs(store, done.submitted) if dry_run else None
    return done, found_rows(done, known), summary(done, known)
