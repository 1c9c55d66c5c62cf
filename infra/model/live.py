"""The trainer's own engines, measured while its producer waits: known by the label that they report, and by nothing more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from infra.errors import PinViolation
from infra.model.fleets import EngineProof
from infra.model.points import EvalPoint
from infra.model.suites import Suite


class LiveRequest(BaseModel):
    """All that crosses from training to an evaluation on its own engines; no key is ever part of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    point: EvalPoint = Field(title="Point", description="run, step and attempt of the point")
    engines: tuple[str, ...] = Field(min_length=1, description="base URLs of all engines that serve the live model")
    api_key_from: str = Field(
        default="",
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|secret:[A-Za-z0-9][A-Za-z0-9_-]*)?$",
        description="where the flow finds the engines' key: env:VARIABLE of its process, or secret:BLOCK of Prefect",
    )
    suite: Suite = Field(title="Suite", description="what to measure")
    tokenizer: str | None = Field(
        default=None, description="folder or cached hub id with the chat template, for datasets that apply it"
    )
    store_url: str = Field(description="object store: file:///folder or s3://bucket/prefix")
    deadline_s: float = Field(default=1800.0, gt=0, description="the point is skipped as 'timeout' after so long")
    expires_at: float | None = Field(
        default=None, allow_inf_nan=False, description="Unix time at which the trainer waits no more for the point"
    )

    @field_validator("engines")
    @classmethod
    def _are_urls(cls, engines: tuple[str, ...]) -> tuple[str, ...]:
        for engine in engines:
            url = urlsplit(engine)
            if url.scheme not in ("http", "https") or not url.hostname:
                raise ValueError(f"engine {engine!r:.80} is no http:// or https:// URL")
            if url.username or url.password or url.query:
                raise ValueError("an engine's URL holds no user, password or query: name its key with api_key_from")
        bases = tuple(engine.rstrip("/") for engine in engines)
        if len(set(bases)) != len(bases):
            raise ValueError(f"an engine is given twice: {', '.join(bases)}")
        return bases

    @model_validator(mode="after")
    def _chat_has_a_template(self) -> Self:
        asking = [dataset.name for dataset in self.suite.datasets if dataset.apply_chat_template]
        if asking and self.tokenizer is None:
            raise ValueError(f"datasets {', '.join(asking)} apply the chat template: say where it is with 'tokenizer'")
        return self

    @property
    def export_time_seconds(self) -> float:
        """Nothing is exported."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEngine:
    name: str
    base_url: str

    @classmethod
    def at(cls, base_url: str) -> Self:
        """Named by its address, which is what a trainer knows it by."""
        return cls(name=urlsplit(base_url).netloc, base_url=base_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFleet:
    """Engines of the trainer that all reported `version`, a label of the trainer's own making.

    Nothing is leased, loaded or deleted. `cache_key` is of this evaluation alone: what an engine remembers of prompts, it
    remembers apart for it, since a trainer may keep that memory over updates of the weights.
    """

    point: EvalPoint
    engines: tuple[LiveEngine, ...]
    version: str
    proofs: tuple[EngineProof, ...]
    tokenizer: str | None
    cache_key: str
    api_key: str = field(repr=False)

    def __post_init__(self) -> None:
        reported = {proof.engine: proof.reported_version for proof in self.proofs}
        unproved = {engine.name: reported.get(engine.name, "nothing") for engine in self.engines}
        wrong = {name: version for name, version in unproved.items() if version != self.version}
        if wrong or not self.engines or not self.version:
            message = f"live engines do not serve {self.version!r} alone: {wrong or 'no engines, or no label'}"
            raise PinViolation(message, expected=self.version, reported=wrong)

    @property
    def token(self) -> str:
        return self.version

    def step_of(self, token: str) -> int:
        """The label stands for the step at which the trainer waited: it is no number that we made."""
        return self.point.step
