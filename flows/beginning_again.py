"""A flow whose process was killed begins again, once: what it had exported and sampled is kept, and only the rest is done.

Prefect retries a task or a flow that raises, in the same process; of one that is gone only its runner knows.
"""

from __future__ import annotations

import logging
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import PrefectException
from prefect.states import AwaitingRetry

from infra.errors import StoreError
from infra.handover import leave
from infra.model import EvalRequest
from infra.records import find
from infra.store import Store

logger = logging.getLogger(__name__)
STARTS = 2


def begins_again(request: EvalRequest, flow_run: FlowRun, state: State[Any]) -> bool:
    """Has the runner start it once more, unless the point has its record or the flow was killed before.

    A try of the ledger is not begun twice: the ledger itself gives such a checkpoint its next try. False also where Prefect or
    the store does not answer.
    """
    if not state.is_crashed() or request.ledger is not None:
        return False
    try:
        if find(Store(request.store_url), request.point, request.suite.name) is not None:
            return False
        with get_client(sync_client=True) as client:
            if client.read_flow_run(flow_run.id).run_count >= STARTS:
                return False
            leave(Store(request.store_url), request.point, str(flow_run.id))
            message = f"begins again, after {state.message or 'its process was killed'}"
            client.set_flow_run_state(flow_run.id, AwaitingRetry(message=message), force=True)
    except (StoreError, PrefectException, httpx.HTTPError) as error:
        logger.warning("%s does not begin again: %s", request.point.name, error)
        return False
    return True
