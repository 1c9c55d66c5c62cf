"""All that is missing of a run goes to a sink, one projection at a time; it can be asked for again without harm."""

from __future__ import annotations

from infra.errors import PinpointError
from infra.sinks import Place, SinkFailed, open_sink, shown
from infra.sinks.metrics import points_of
from infra.sinks.sent import sinks_prefix
from infra.sinks.turns import turn


def project(name: str, place: Place) -> tuple[str, int, int]:
    """Where it went, how many points were new there, and how many the run has.

    Raises:
        ConfigError: no such sink, or its package is not installed.
        SinkFailed: the sink raised; what it has not taken is written the next time.
    """
    sink = open_sink(name, place)
    with turn(place.store, f"{sinks_prefix(place.run, name, sink.target)}/turns"):
        points = points_of(place.store, place.run)
        try:
            return shown(sink.target), sink.write(points), len(points)
        except PinpointError:
            raise
        except Exception as error:
            line = shown(" ".join(str(error).split()), sink.target)[:300]
            raise SinkFailed(f"sink {name} ({shown(sink.target)}) failed: {type(error).__name__}: {line}") from error
