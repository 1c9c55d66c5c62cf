"""A re-evaluation is handed to Prefect once for each try at its key, however often the handing over is tried."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import httpx

from infra.errors import ServiceUnreachable
from infra.model import EvalRequest, LedgerTry
from trainer_integration.outbox import DEPLOYMENT, Delivery
from trainer_integration.prefect_api import TERMINAL, PrefectApi, PrefectRefused

PATIENCE_S = 60.0
PAUSE_S = 1.0
TAG = "reevaluation"
LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True, slots=True)
class Sender:
    """Creates flow runs of `evaluate_snapshot` at one Prefect server."""

    api: PrefectApi

    @property
    def server(self) -> str:
        """The server's address as every machine may know it: this machine's own is nobody else's 127.0.0.1."""
        url = httpx.URL(self.api.url)
        return str(url.copy_with(host=socket.gethostname()) if url.host in LOOPBACK else url)

    def send(self, request: EvalRequest) -> str:
        """Gives the flow run's id. Raises ServiceUnreachable when Prefect does not take it within a minute, or refuses it."""
        delivery, deadline = reevaluation(request), time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.api.create_flow_run(delivery)
            except PrefectRefused as error:
                raise ServiceUnreachable("Prefect", self.api.url, str(error)) from error
            except httpx.HTTPError as error:
                if time.monotonic() > deadline:
                    remedy = f"see that it runs and knows deployment {DEPLOYMENT} ({error})"
                    raise ServiceUnreachable("Prefect", self.api.url, remedy) from error
                time.sleep(PAUSE_S)

    def gone(self, flow_run: str) -> bool:
        """Whether Prefect has ended the flow run, or knows it no longer. In doubt it has not."""
        try:
            return self.api.state_of(flow_run)[0] in TERMINAL
        except httpx.HTTPStatusError as error:
            return error.response.status_code == 404
        except (httpx.HTTPError, PrefectRefused):
            return False


def reevaluation(request: EvalRequest) -> Delivery:
    """The flow run of one claim of the ledger: the same claim always has the same key with Prefect.

    The claim's id is in it: Prefect never forgets a key, and another store has claims of its own for the same key and try.
    """
    made, ticket = Delivery.of(request, DEPLOYMENT), request.ledger
    if not isinstance(ticket, LedgerTry):
        return made
    tags = (*made.tags, TAG, f"ledger:{ticket.key}")
    key = f"reevaluate/{ticket.key}/{ticket.number}/{ticket.id}"
    return made.model_copy(update={"idempotency_key": key, "tags": tags})
