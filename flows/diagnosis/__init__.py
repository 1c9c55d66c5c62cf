"""What `pinpoint doctor` looks at: each piece is used once, as an evaluation would, and a fault comes with its remedy."""

from __future__ import annotations

from flows.diagnosis.finding import Finding, Verdict

__all__ = ["Finding", "Verdict"]
