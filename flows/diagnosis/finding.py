"""What was found of one piece, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import httpx

from infra.errors import PinpointError

Verdict = Literal["ok", "note", "fault"]
Check = Callable[[], Sequence["Finding"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`note` is nothing wrong, but worth knowing; with a `fault`, evaluations fail or are skipped."""

    piece: str
    verdict: Verdict
    found: str
    remedy: str = ""


def found_by(piece: str, check: Check, remedy: str = "") -> Sequence[Finding]:
    """What `check` finds; an outage that it meets is a fault of `piece`, whose message names the remedy, or `remedy` does."""
    try:
        return check()
    except PinpointError as error:
        return [Finding(piece=piece, verdict="fault", found=str(error), remedy=remedy)]
    except (httpx.HTTPError, OSError, ValueError) as error:  # what fails only now and then, for one
        said = " ".join(str(error).split())[:300]
        return [Finding(piece=piece, verdict="fault", found=f"{type(error).__name__}: {said}", remedy=remedy or "try again")]
