"""What a trigger found and did, as people read it: one row a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.saved.costs import Cost
from infra.saved.round import Done
from infra.saved.survey import Found

NONE = "–"


def found_rows(done: Done, costs: Mapping[str, Cost] | None = None) -> list[dict[str, str]]:
    """In the order of evaluation; with `costs`, those of what would be submitted."""
    wanted = {one.saved.location for one in done.submitted}
    return [_row(one, one.saved.location in wanted, costs) for one in done.found]


def _row(one: Found, wanted: bool, costs: Mapping[str, Cost] | None) -> dict[str, str]:
    row = {
        "step": str(one.saved.step),
        "state": _state(one, wanted, dry=costs is not None),
        "place": one.saved.location,
        "datasets": ", ".join(spec.name for spec in one.suite.datasets) if one.suite else NONE,
        "key": one.key or NONE,
        "why": one.why or NONE,
    }
    if costs is None:
        return row
    cost = costs.get(one.saved.location) if wanted else None
    return row | {
        "requests": f"{cost.requests:,}" if cost else NONE,
        "most tokens": f"{cost.most_tokens:,}" if cost else NONE,
        "GB read": f"{cost.n_bytes / 1e9:.3f}" if cost else NONE,
        "seconds": f"{cost.seconds:.0f}" if cost and cost.seconds is not None else NONE,
    }


def _state(one: Found, wanted: bool, *, dry: bool) -> str:
    if wanted:
        return "would run" if dry else "submitted"
    return "not looked at yet" if one.state == "unread" else one.state


def summary(done: Done, costs: Mapping[str, Cost] | None = None) -> str:
    """One line: what was there, what is done about it."""
    counts: dict[str, int] = {}
    wanted = {one.saved.location for one in done.submitted}
    for one in done.found:
        state = _state(one, one.saved.location in wanted, dry=costs is not None)
        counts[state] = counts.get(state, 0) + 1
    said = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
    text = f"{len(done.found)} checkpoints: {said}."
    if costs:
        known = [cost.seconds for cost in costs.values() if cost.seconds is not None]
        took = f", about {sum(known):.0f} s for {len(known)} of them by earlier points" if known else ""
        requests = sum(cost.requests for cost in costs.values())
        text += f" It would cost {requests:,} requests, {sum(cost.n_bytes for cost in costs.values()) / 1e9:.3f} GB read{took}."
    if done.full and not done.submitted:
        text += " As many re-evaluations of this store as may be are under way already."
    if done.reached is not None:
        text += f" The target is reached at step {done.reached.saved.step}, with {done.reached.score:.3f}."
    return text


def step_summary(last: Sequence[Found]) -> str:
    """The steps, for a log line."""
    return ", ".join(str(one.saved.step) for one in last) or "none"
