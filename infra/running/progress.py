"""How far a dataset is, how fast it goes, and when it will be done, counted from what was really asked."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """Of `total` samples `done` are there, `resumed` of them from the log of an earlier try."""

    total: int = 0
    done: int = 0
    resumed: int = 0
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 0.0

    @property
    def per_second(self) -> float:
        until = time.monotonic() if self.ended is None else self.ended
        return (self.done - self.resumed) / max(until - self.started, 1e-6)

    @property
    def eta_s(self) -> float | None:
        """None until the first sample is there."""
        return (self.total - self.done) / self.per_second if self.done > self.resumed else None

    def __str__(self) -> str:
        said = f"{self.done:,} of {self.total:,} samples, {self.per_second:.3g} a second"
        if self.resumed:
            said += f", {self.resumed:,} from before"
        if self.done == self.total or self.eta_s is None:
            return said
        minutes, seconds = divmod(round(self.eta_s), 60)
        return f"{said}, {minutes}:{seconds:02d} left"
