"""A sink gets every point of a run at the step that was dispatched, however late, in whatever order, and none of them twice.

A sink is a projection of the store's records: what it missed, because it was down for one, is written the next time.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra.errors import ConfigError, PinpointError

if TYPE_CHECKING:
    from infra.sinks.metrics import TrackedPoint
    from infra.store import Store

SINKS = {
    "jsonl": "infra.sinks.jsonl:JsonLines",
    "mlflow": "infra.sinks.mlflow:MLflow",
    "tensorboard": "infra.sinks.tensorboard:TensorBoard",
    "trackio": "infra.sinks.trackio:Trackio",
    "wandb": "infra.sinks.wandb:WeightsAndBiases",
}
PROJECT = "pinpoint"


_ADDRESS = re.compile(r"(\w://)([^/@\s]*@)?([^\s?]*)(\?\S*)?")


def shown(text: str, target: str = "") -> str:
    """Without what addresses, in it or in `target`, have for the server alone: user, password, query."""
    for _, user, _, query in _ADDRESS.findall(target):
        for secret in filter(None, (user, query)):
            text = text.replace(secret, "")
    return _ADDRESS.sub(r"\1\3", text)


class SinkFailed(PinpointError):
    """A sink did not take what it was given; nothing is lost, the next projection writes it."""


class Sink(Protocol):
    @property
    def target(self) -> str:
        """Where it writes, in words that tell one place from another."""

    def write(self, points: Sequence[TrackedPoint]) -> int:
        """Given all points of the run, writes those that are not there yet; says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a sink is opened for: a run, in a store; `home` is for sinks that are files, `project` for those that have some."""

    store: Store
    run: str
    home: Path
    project: str | None = None

    @property
    def folder(self) -> Path:
        return self.home.expanduser().absolute() / "sinks"


def check_name(name: str) -> str:
    """Raises ConfigError for a name that no sink has."""
    if name in SINKS:
        return name
    nearest = difflib.get_close_matches(name, SINKS, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(SINKS)}"
    raise ConfigError(f"no sink {name!r}: {hint}")


def open_sink(name: str, place: Place) -> Sink:
    """Writes nothing yet. Raises ConfigError for an unknown sink, or one whose package is not installed."""
    module, _, attribute = SINKS[check_name(name)].partition(":")
    sink: Sink = getattr(importlib.import_module(module), attribute)(place)
    return sink


def needs_package(sink: str, package: str, remedy: str, error: ImportError) -> Any:
    """Raises ConfigError: the package of a sink can't be imported."""
    raise ConfigError(f"sink {sink!r} needs the package {package} ({error}): {remedy}") from error
