"""A claim of the ledger, and where it lies."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from infra.model import EvalPoint, LedgerKey, LedgerTry

LEDGER = "ledger"
TTL_S = 120.0
QUEUE_S = 6 * 3600.0  # a flow run that waited so long without beginning is taken for lost
WITHDRAWN = b"withdrawn by "


class Claim(BaseModel):
    """Who submits a try, at which point, of what: written once. `datasets` are digests of what is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: str
    number: int
    id: str
    by: str
    at: str
    point: EvalPoint
    suite: str
    suite_digest: str
    datasets: tuple[str, ...]
    checkpoint: str
    kept: str

    @property
    def ticket(self) -> LedgerTry:
        """What the flow run is given."""
        return LedgerTry(key=self.key, number=self.number, id=self.id, checkpoint=self.checkpoint, kept=self.kept)


def home_of(key: LedgerKey, number: int) -> str:
    """The folder of the n-th try at a key."""
    return f"{LEDGER}/{key.place}/{key.suite}/{number:04d}"
