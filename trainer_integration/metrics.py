"""What a trainer's own tracker is given of a point: the numbers, and their names, that every sink has."""

from __future__ import annotations

from infra.sinks.metrics import metrics_of as metrics_of
