"""One trigger's work: of what a survey finds, as many as may be are claimed, held and sent to be evaluated.

Whoever loses a claim has nothing to do. Who dies between claim and sending is succeeded by the next trigger, `TTL_S` later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from infra.errors import PinpointError, StoreError
from infra.holds import WAITING_S, hold, release
from infra.ledger import Claim, claim, queued, take_over, withdraw
from infra.model import EvalRequest, FleetSpec, LedgerKey, SnapshotSource
from infra.records import next_attempt
from infra.saved.survey import Found, Survey

logger = logging.getLogger(__name__)
Send = Callable[[EvalRequest], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a round saw and did. `reached` is the checkpoint, in step order, whose score ended the search for a target.

    `full` says that it stopped because as many re-evaluations of the store as may be were under way, of whatever trigger.
    """

    found: tuple[Found, ...]
    submitted: tuple[Found, ...] = ()
    reached: Found | None = None
    full: bool = False

    @property
    def under_way(self) -> int:
        return sum(one.state == "under way" for one in self.found)

    @property
    def left(self) -> int:
        """What a later round has to see to: the target's search leaves the rest alone once it has ended."""
        if self.reached is not None:
            return 0
        return sum(one.state in ("to do", "unread", "under way") for one in self.found)


def run_round(survey: Survey, fleet: FleetSpec, send: Send, *, limit: int | None = None, only_look: bool = False) -> Done:
    """Submits at most `limit`, and no more than may be under way at once; with `only_look` it says what it would submit.

    `send` has a flow run created, and gives its id. Raises StoreError, and what `send` raises.
    """
    found = survey.found()
    if survey.asked.order.by == "target":
        return _search(survey, fleet, send, found, only_look=only_look)
    submitted: list[Found] = []
    busy = 0 if only_look else survey.busy()
    most = len(found) if limit is None else limit
    full = False
    for position, one in enumerate(found):
        full = not only_look and busy >= survey.asked.care.at_once
        if full or len(submitted) >= most:
            break
        found[position] = one = survey.judged(one)
        if not only_look:
            _settle(survey, one)
        if one.state == "to do":
            sent = one if only_look else _submit(survey, fleet, send, one)
            busy += not only_look
            if sent is not None:
                submitted.append(sent)
            if not only_look:
                found[position] = replace(one, state="under way")
    return Done(found=tuple(found), submitted=tuple(submitted), full=full)


def _search(survey: Survey, fleet: FleetSpec, send: Send, found: Sequence[Found], *, only_look: bool) -> Done:
    """Each is measured before the next is submitted, and none is left out that may still be written."""
    target = survey.asked.order.target
    seen: list[Found] = []
    for position, unread in enumerate(found):
        one = survey.judged(unread)
        seen.append(one)
        rest = tuple(found[position + 1 :])
        if not only_look:
            _settle(survey, one)
        if one.state == "evaluated" and target and one.score is not None and one.score >= target.score:
            return Done(found=(*seen, *rest), reached=one)
        if one.state == "to do":
            if not only_look and survey.busy() >= survey.asked.care.at_once:
                return Done(found=(*seen, *rest), full=True)
            sent = one if only_look else _submit(survey, fleet, send, one)
            seen[-1] = one if only_look else replace(one, state="under way")
            return Done(found=(*seen, *rest), submitted=(sent,) if sent else ())
        if one.state in ("under way", "waits"):
            return Done(found=(*seen, *rest))
    return Done(found=tuple(seen))


def _settle(survey: Survey, found: Found) -> None:
    """A dead last try that no other one follows leaves its record, too: the curve says what became of it."""
    if found.state == "given up" and found.dead is not None:
        take_over(survey.store, found.dead)


def _submit(survey: Survey, fleet: FleetSpec, send: Send, found: Found) -> Found | None:
    """None if somebody else has it, or had it first."""
    store, saved = survey.store, found.saved
    if found.suite is None or (found.dead is not None and not take_over(store, found.dead)):
        return None
    claimed = claim(
        store,
        LedgerKey.parse(found.key),
        found.number,
        point=saved.point(found.run, next_attempt(store, found.run)),
        suite=found.suite.name,
        suite_digest=found.suite_digest,
        datasets=found.datasets,
        checkpoint=saved.location,
        kept=saved.kept_location,
    )
    if claimed is None:
        return None
    keep_for(claimed)
    try:
        flow_run = send(_request(survey, fleet, found, claimed))
    except BaseException:
        withdraw(store, claimed.ticket)
        let_go(claimed)
        raise
    queued(store, claimed.ticket, flow_run, survey.server)
    logger.info("%s submitted, try %d at %s: %s", claimed.point.name, claimed.number, claimed.key, saved.location)
    return found


def _request(survey: Survey, fleet: FleetSpec, found: Found, claimed: Claim) -> EvalRequest:
    where = survey.asked.where
    return EvalRequest(
        point=claimed.point,
        source=SnapshotSource(path=found.saved.path, staged=False),
        suite=found.suite or survey.measured.suite,
        fleet=FleetSpec() if where.black_box else fleet,
        black_box=where.black_box,
        store_url=survey.store.url,
        trust_remote_code=where.trust_remote_code,
        deadline_s=where.deadline_s,
        ledger=claimed.ticket,
    )


def hold_id(key: str, number: int) -> str:
    return f"{key}-{number}"


def keep_for(claimed: Claim) -> None:
    """Asks the trainer to keep the checkpoint. A place that can't be written to is no reason not to evaluate what is in it."""
    try:
        hold(claimed.kept, hold_id(claimed.key, claimed.number), by=f"evaluation of {claimed.point.name}", ttl_s=WAITING_S)
    except (PinpointError, OSError) as error:
        logger.warning("%s is not held, its trainer may delete it: %s", claimed.kept, error)


def let_go(claimed: Claim) -> None:
    try:
        release(claimed.kept, hold_id(claimed.key, claimed.number))
    except (StoreError, OSError) as error:
        logger.warning("the hold of %s ends by itself: %s", claimed.kept, error)
