"""What was sent to a tracker that can't be asked for what it has: each point has a place in the order of sending, for good.

The order is in the store before anything is sent, and how much of it has arrived afterwards: points that were cut off are sent
again at the same places, by which a tracker that already has them knows them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import xxhash

from infra.sinks import Place, shown
from infra.sinks.metrics import TrackedPoint

Send = Callable[[list[tuple[int, TrackedPoint]]], None]


def sinks_prefix(run: str, name: str, target: str) -> str:
    """Where the store keeps what it must know of one sink of a run."""
    return f"runs/{run}/sinks/{name}-{xxhash.xxh64_hexdigest(target.encode())}"


def send_missing(place: Place, name: str, target: str, points: Sequence[TrackedPoint], send: Send) -> int:
    """Gives `send` the points that have not arrived, with their places; says how many. Only one caller at a time."""
    key = f"{sinks_prefix(place.run, name, target)}/sent.json"
    try:
        known = json.loads(place.store.read(key))
    except FileNotFoundError:
        known = {"target": shown(target), "order": [], "arrived": 0}
    order, arrived = [*known["order"]], int(known["arrived"])
    order += [point.key for point in points if point.key not in set(order)]
    by_key = {point.key: point for point in points}
    missing = [(at, by_key[point]) for at, point in enumerate(order) if at >= arrived and point in by_key]
    if missing:
        place.store.write(key, json.dumps({**known, "order": order}).encode())
        send(missing)
        place.store.write(key, json.dumps({**known, "order": order, "arrived": len(order)}).encode())
    return len(missing)
