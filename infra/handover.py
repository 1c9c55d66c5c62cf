"""An export whose process was killed is gone on with at its own prefix, with what it had sent, and by one other process alone.

Whoever has seen the process end leaves its prefix to the one that is started in its place. If several look for it, one has it,
by conditional create; every other exports to a prefix of its own: no two processes that live write to one prefix. What the
killed one's workers on other hosts may still send is of the same staged files.

Layout, beside the lease records: `leases/RUN/SNAPSHOT/left/BY` and `leases/RUN/SNAPSHOT/taken/BY`, where BY names whom the
killed process and its successor work for: a flow run.
"""

from __future__ import annotations

from infra.errors import AlreadyExists, SnapshotMissing
from infra.leases import Holder, acquire, home_of, of_point, owner_of, release
from infra.model import EvalPoint
from infra.store import Store


def leave(store: Store, point: EvalPoint, by: str) -> None:
    """Of a process that has ended: what it was exporting for the point, if anything, is for the next that works for `by`."""
    for prefix in of_point(store, point):
        holders = (key.rpartition("/")[2] for key in store.list(f"{home_of(prefix)}/holders"))
        if any(holder.startswith(f"{by}.") for holder in holders):
            store.write(f"{home_of(prefix)}/left/{by}", b"")


def take(store: Store, point: EvalPoint, by: str) -> tuple[str, Holder] | None:
    """The prefix that was left to `by`, and a hold of one's own on it; None if there is none, or somebody was quicker."""
    for prefix in of_point(store, point):
        if not store.exists(f"{home_of(prefix)}/left/{by}"):
            continue
        try:
            holder = acquire(store, prefix, owner=owner_of(point), purpose="export", by=by)
        except SnapshotMissing:
            continue  # a sweep was quicker
        try:
            store.create(f"{home_of(prefix)}/taken/{by}", holder.id.encode())
        except AlreadyExists:
            release(store, prefix, holder)
        else:
            return prefix, holder
    return None
