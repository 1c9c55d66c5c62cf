"""Duties of a thread that goes on whatever fails: each fails for itself, and is tried again after a growing pause."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import httpx

from infra.errors import PinpointError, StoreUnreachable
from trainer_integration.backoff import Backoff

logger = logging.getLogger(__name__)
PREFECT, DEPLOYMENT, STORE = "Prefect", "deployment", "store"  # what duties need, with a name after the last two


class Duties:
    """A failure makes only what is at fault wait: the duty itself, or all that need the thing that is away."""

    def __init__(self) -> None:
        self._backoff = Backoff()

    def attempt(self, duty: Callable[[], object], name: str, *needs: str) -> None:
        """Does `duty`, unless it or something it needs has just failed. Whatever it raises is logged."""
        if self._backoff.waits(name, *needs):
            return
        try:
            duty()
        except (PinpointError, OSError, httpx.HTTPError) as error:
            pause, cause = self._backoff.failed(_at_fault(error, name, needs)), f"{type(error).__name__}: {error}"
            logger.warning("pinpoint: %s will be tried again in %.1f s: %s", name, pause, cause.splitlines()[0])
        except Exception:
            logger.exception("pinpoint: %s will be tried again in %.1f s", name, self._backoff.failed(name))
        else:
            self._backoff.succeeded(name, *needs)


def _at_fault(error: Exception, name: str, needs: Sequence[str]) -> str:
    """Which of a duty's `needs` failed, so that all who need it wait; else the duty `name` alone."""
    kind = name
    if isinstance(error, StoreUnreachable):
        kind = STORE
    elif isinstance(error, httpx.TransportError):
        kind = PREFECT
    elif isinstance(error, httpx.HTTPStatusError):
        kind = {404: DEPLOYMENT, 502: PREFECT, 503: PREFECT, 504: PREFECT}.get(error.response.status_code, name)
    return next((need for need in needs if need.startswith(kind)), name)
