"""What a re-evaluation is entered under, so that the same checkpoint, suite, sampling and engines are never paid for twice."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field


class LedgerTry(BaseModel):
    """One try at one key of the ledger: only the flow run that begins it first may execute it.

    `id` is of whoever claimed it; `checkpoint` and `kept` are URLs, of what is read and of what a trainer's retention would
    delete.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    key: str = Field(description="of the ledger: checkpoint, engines and suite")
    number: int = Field(ge=1, description="which try at it")
    id: str = Field(description="of the claim")
    checkpoint: str = Field(default="", description="URL of the checkpoint's folder")
    kept: str = Field(default="", description="URL of the folder that a trainer's retention deletes")


class LedgerKey(BaseModel):
    """Three digests, each cut to what people can still compare: `CHECKPOINT-ENGINES-SUITE`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    checkpoint: str
    engines: str
    suite: str

    @classmethod
    def of(cls, checkpoint_digest: str, engine_digest: str, suite_digest: str) -> Self:
        return cls(checkpoint=checkpoint_digest[:16], engines=engine_digest[:8], suite=suite_digest[:16])

    @classmethod
    def parse(cls, text: str) -> Self:
        checkpoint, engines, suite = text.split("-")
        return cls(checkpoint=checkpoint, engines=engines, suite=suite)

    @property
    def text(self) -> str:
        return f"{self.checkpoint}-{self.engines}-{self.suite}"

    @property
    def place(self) -> str:
        """Below which the ledger has what was done with this checkpoint on such engines, under any suite."""
        return f"{self.checkpoint}-{self.engines}"
