"""How long a fleet may take to form: every part of that has a bound, so that nobody waits for ever."""

from __future__ import annotations

from infra.model import FleetSpec, SnapshotRef

FORM_BOOTS = 6  # times `boot_timeout_s`: placed, started, placed elsewhere and started again
FETCH_BASE_S = 120.0
FETCH_BYTES_PER_S = 20e6  # a slow store; it only has to tell slow from stuck


def fetch_s(snapshot: SnapshotRef) -> float:
    """To bring a snapshot to a node, and to merge it there if it is an adapter."""
    return FETCH_BASE_S + snapshot.manifest.n_bytes / FETCH_BYTES_PER_S


def forming_s(spec: FleetSpec, snapshot: SnapshotRef) -> float:
    """Until all engines are up, in seconds; twice a fetch, since an engine may be placed on another node."""
    return FORM_BOOTS * spec.boot_timeout_s + 2 * fetch_s(snapshot)
