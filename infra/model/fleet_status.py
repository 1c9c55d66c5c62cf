"""What a fleet says of itself while it works or waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """One engine; all but its name and `state`, which is for people, is empty where nobody knows."""

    name: str
    state: str
    node: str = ""
    base_url: str = ""
    pid: int = 0
    weight_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """`holder` is empty if nobody has the fleet; it then ends in `ends_in_s` seconds unless somebody asks for it.

    `lease_left_s`: seconds after which a holder that does not renew has lost it. Of one whose warden does not answer, nothing
    but its name is known.
    """

    name: str
    engine: str
    num_gpus: int
    holder: str
    epoch: int
    lease_left_s: float
    ends_in_s: float | None
    engines: tuple[EngineStatus, ...]
    answers: bool = True

    @classmethod
    def silent(cls, name: str) -> Self:
        return cls(
            name=name,
            engine="",
            num_gpus=0,
            holder="",
            epoch=0,
            lease_left_s=0.0,
            ends_in_s=None,
            engines=(),
            answers=False,
        )
