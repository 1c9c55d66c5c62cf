"""A driver evaluates its live model by waiting for it: the producer is paused, the weights stand still, and both go on after.

`evaluate_live` closes the producer's gate, asks Prefect for an `evaluate_live` flow run, and returns when the point has its
record, at the latest a bounded time later. The gate reopens on every outcome. Nothing is raised because of evaluation: what
goes wrong is a skipped point, at its step, with its reason, by the same outbox as every other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from infra.config import Settings, parse
from infra.errors import ConfigError, ServiceUnreachable
from infra.model import EvalPoint, EvalReport, LiveRequest, SkippedPoint, SkipReason, Suite
from infra.records import next_attempt, now
from infra.store import Store
from trainer_integration.attempts import another_attempt, origin_of
from trainer_integration.evaluation_path import EvaluationPath, resolve_path
from trainer_integration.exchange import RECORD_GRACE_S, Exchange, GivenUp, Patience
from trainer_integration.intents import Intent, soon_intended
from trainer_integration.metrics import metrics_of
from trainer_integration.outbox import Delivery, Outbox, key_of
from trainer_integration.pause_gate import Gate, Pause, refuse_early
from trainer_integration.submit import Submitter

logger = logging.getLogger(__name__)
DEPLOYMENT = "evaluate_live/pinpoint"
OUTBOX = "outbox-live"
SLICE_S = 0.1
DIED = "the driver ended before it had asked for the evaluation: while it waited for submissions, or for Prefect"


class LiveSettings(BaseModel):
    """How a training run is evaluated on its own engines."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run: str = Field(description="name of the training run; the same name continues its curve")
    suite: Suite
    engines: tuple[str, ...] = Field(min_length=1, description="base URLs of all engines that serve the live model")
    api_key_from: str = Field(default="", description="where the flow finds the engines' key: env:VARIABLE or secret:BLOCK")
    tokenizer: str | None = Field(default=None, description="where the chat template is, if a dataset applies it")
    rollout_function_path: str = Field(default="the rollout function", description="the producer, as the gate names it")
    deployment: str = DEPLOYMENT
    deadline_s: float = Field(default=1800.0, gt=0, description="the longest that training waits for one point")
    settle_s: float = Field(default=60.0, ge=0, description="the longest wait for submissions that are under way")
    start_timeout_s: float = Field(default=120.0, gt=0, description="the longest wait for a runner to take the flow run")
    silence_s: float = Field(default=30.0, gt=0, description="the longest silence of Prefect or the store")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """`paused_s` is how long the producer's gate was closed; see `Pause` for the rest."""

    record: EvalReport | SkippedPoint
    paused_s: float
    pauses: tuple[Pause, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """To be logged as they are."""
        return metrics_of(self.record) | {
            "eval/paused_seconds": self.paused_s,
            "eval/rollouts_unfinished": float(sum(pause.unfinished for pause in self.pauses)),
            "eval/gate_lapsed": float(any(pause.lapsed for pause in self.pauses)),
        }


@dataclass(slots=True)
class _Turn:
    """One call. `stopping` is set when nobody waits for it any more."""

    point: EvalPoint
    stopping: threading.Event
    intent: Intent | None  # until there is a flow run, or a skip
    started: float = field(default_factory=time.monotonic)
    pauses: list[Pause] = field(default_factory=list)


class LiveEvaluator:
    """One training run's way to evaluation on its own engines.

    Raises (from the constructor alone, before training begins): ConfigError for a gate that does not pause what fills the
    engines and for settings that can't be meant, StoreError for a store that can't be used.
    """

    def __init__(self, live: LiveSettings, settings: Settings, gate: Gate | Sequence[Gate]) -> None:
        """`gate` is the producer's; of a producer in several processes, all of theirs."""
        self.live = live
        self.gates = tuple(gate) if isinstance(gate, Sequence) else (gate,)
        self._paths: tuple[EvaluationPath, ...] | None = None
        try:
            self._resolve()
        except ServiceUnreachable as error:
            logger.warning("pinpoint: whose the gate is will be asked when it is closed: %s", error)
        self.store = Store(settings.store, settings.s3_access())
        self._request(EvalPoint(run=live.run, step=0), live.engines, None)
        self.store.check()
        self.attempt = next_attempt(self.store, live.run)
        self._api_url = settings.prefect_api_url or "http://127.0.0.1:4200/api"
        self._submitter = Submitter(Outbox(settings.home.expanduser() / OUTBOX), self.store, self._api_url)
        self._origin = origin_of(self.store, live.run)
        self._labels: dict[str, int] = {}
        self._asked: set[int] = set()

    def evaluate_live(self, step: int, *, final: bool = False, engines: Sequence[str] = ()) -> LiveResult | None:
        """Returns when the point has its record and the gate is open again; None only if nothing could be recorded.

        The weights must not change before it returns. `engines` are for this call, where they are others than before.
        """
        return self._never_derailing(step, final, tuple(engines), threading.Event())

    async def evaluate_live_async(self, step: int, *, final: bool = False, engines: Sequence[str] = ()) -> LiveResult | None:
        """The same while the event loop goes on, the producer on it too. If it is cancelled, the gate reopens."""
        stopping = threading.Event()
        turn = asyncio.to_thread(self._never_derailing, step, final, tuple(engines), stopping)
        running = asyncio.ensure_future(turn)
        try:
            return await asyncio.shield(running)
        finally:
            stopping.set()

    def close(self) -> None:
        """Ends the background thread. What is undelivered stays in the outbox for the next process."""
        self._submitter.close()

    def _never_derailing(
        self, step: int, final: bool, engines: tuple[str, ...], stopping: threading.Event
    ) -> LiveResult | None:
        intent = None
        try:
            point = self._point(step, final)
            intent = self._intent(point)
            turn = _Turn(point, stopping, intent)
            try:
                record = self._measured(turn, engines or self.live.engines)
            except ServiceUnreachable as error:
                record = self._skipped(turn, SkipReason.UNHEALTHY, str(error))
            except Exception as error:
                logger.exception("pinpoint: step %d of %s could not be evaluated live", step, self.live.run)
                record = self._skipped(turn, SkipReason.CRASHED, f"{type(error).__name__}: {error}")
            return LiveResult(record=record, paused_s=time.monotonic() - turn.started, pauses=tuple(turn.pauses))
        except BaseException as error:  # an interrupt, too: whoever looks next records the point, unless it has a flow run
            if intent is not None:
                intent.given_up()
            if not isinstance(error, Exception):
                raise
            logger.exception("pinpoint: the skip of step %d of %s could not be recorded", step, self.live.run)
            return None

    def _intent(self, point: EvalPoint) -> Intent | None:
        """What is recorded if this process dies before the point has a flow run; None if it can't be written."""
        request = self._request(point, self.live.engines, None)
        skip = self._delivery(request, self._skip_of(point, SkipReason.CRASHED, DIED))
        try:
            return soon_intended(self._submitter.outbox, self._submitter.owned(skip))
        except OSError as error:
            logger.error("pinpoint: a driver that is killed now loses %s: %s", point.name, error)
            return None

    def _measured(self, turn: _Turn, engines: tuple[str, ...]) -> EvalReport | SkippedPoint:
        self._resolve()
        with self._paused(turn):
            self._settle(turn)
            outcome = self._waited_for(turn, engines)
        if any(pause.lapsed for pause in turn.pauses):
            logger.warning("pinpoint: the gate was open again before the evaluation of %s had ended", turn.point.name)
        if isinstance(outcome, GivenUp):
            return self._skipped(turn, outcome.reason, outcome.message)
        if isinstance(outcome, EvalReport):
            self._check_label(outcome)
        return outcome

    @contextmanager
    def _paused(self, turn: _Turn) -> Iterator[None]:
        """All gates closed, for longer than the evaluation can take; the time counts from when the first one closes."""
        turn.started = time.monotonic()
        longest_s = self._longest_s
        with ExitStack() as closed:
            turn.pauses += [closed.enter_context(gate.closed(longest_s)) for gate in self.gates]
            yield

    def _settle(self, turn: _Turn) -> None:
        """Waits for submissions under way, so that the engines are free; what is left then finishes beside the evaluation."""
        ends = time.monotonic() + self.live.settle_s
        for gate, pause in zip(self.gates, turn.pauses, strict=True):
            while (left := gate.unfinished(SLICE_S)) and time.monotonic() < ends and not turn.stopping.is_set():
                pass
            pause.unfinished = left
        if any(pause.unfinished for pause in turn.pauses):
            count = sum(pause.unfinished for pause in turn.pauses)
            logger.info("pinpoint: %s is evaluated beside %d unfinished submissions", turn.point.name, count)

    def _waited_for(self, turn: _Turn, engines: tuple[str, ...]) -> EvalReport | SkippedPoint | GivenUp:
        live, suite = self.live, self.live.suite.name
        request = self._request(turn.point, engines, time.time() + live.deadline_s)
        patience = Patience(deadline_s=live.deadline_s, start_timeout_s=live.start_timeout_s, silence_s=live.silence_s)
        exchange = Exchange(self._delivery(request, None), turn.point, suite, self.store, self._api_url)
        try:
            while not turn.stopping.is_set():
                outcome = exchange.outcome(patience, SLICE_S)
                if exchange.submitted and turn.intent is not None:
                    turn.intent.fulfilled()
                if outcome is not None:
                    return outcome
        finally:
            exchange.end()
        return GivenUp(reason=SkipReason.CRASHED, message="the driver was cancelled while it waited")

    def _skipped(self, turn: _Turn, reason: SkipReason, message: str) -> SkippedPoint:
        """Recorded in the store by the thread of the outbox, and a Skipped run in the UI unless the point's flow has begun."""
        logger.warning("pinpoint: %s skipped: %s: %s", turn.point.name, reason.value, message)
        skipped = self._skip_of(turn.point, reason, message)
        self._submitter.skip(self._delivery(self._request(turn.point, self.live.engines, None), skipped), turn.intent)
        return skipped

    def _skip_of(self, point: EvalPoint, reason: SkipReason, message: str) -> SkippedPoint:
        return SkippedPoint(
            point=point,
            suite=self.live.suite.name,
            reason=reason.value,
            message=message,
            export_time_seconds=0.0,
            finished_at=now(),
        )

    def _request(self, point: EvalPoint, engines: tuple[str, ...], expires_at: float | None) -> LiveRequest:
        live = self.live
        values = {
            "point": point,
            "engines": engines,
            "api_key_from": live.api_key_from,
            "suite": live.suite,
            "tokenizer": live.tokenizer,
            "store_url": self.store.url,
            "deadline_s": live.deadline_s,
            "expires_at": expires_at,
        }
        return parse(LiveRequest, values, where="live evaluation")

    def _delivery(self, request: LiveRequest, skip: SkippedPoint | None) -> Delivery:
        point, suite = request.point, request.suite.name
        tags = (f"run:{point.run}", f"step:{point.step}", f"suite:{suite}")
        return Delivery(
            deployment=self.live.deployment,
            idempotency_key=key_of(point, suite, request.store_url, self._origin),
            name=point.name,
            tags=(*tags, f"skipped:{skip.reason}") if skip else tags,
            parameters={"request": request.model_dump(mode="json")},
            skip=skip,
            store_url=request.store_url,
        )

    def _point(self, step: int, final: bool) -> EvalPoint:
        """A step that is asked for again is another attempt: its first record stays."""
        if step in self._asked:
            self.attempt, self._asked = another_attempt(self.store, self.live.run, self.attempt), set()
        self._asked.add(step)
        return EvalPoint(run=self.live.run, step=step, attempt=self.attempt, final=final)

    @property
    def _longest_s(self) -> float:
        return self.live.settle_s + self.live.deadline_s + 2 * RECORD_GRACE_S

    def _resolve(self) -> tuple[EvaluationPath, ...]:
        """Once for all: raises ConfigError if a gate is not that of the producer, or opens by itself within an evaluation,
        ServiceUnreachable if it can't be asked.
        """
        if self._paths is None:
            if not self.gates:
                raise ConfigError("nothing would be paused: give the gate in front of the producer's submissions")
            for gate in self.gates:
                refuse_early(gate, self._longest_s, ", or lower deadline_s")
            standard = self.live.rollout_function_path
            paths = tuple(resolve_path("live", standard=standard, paused=gate.producer) for gate in self.gates)
            self._paths = paths
        return self._paths

    def _check_label(self, report: EvalReport) -> None:
        """A label that stands still while training goes on is one that the trainer does not move: it proves nothing."""
        before = self._labels.setdefault(report.weight_version, report.point.step)
        if before != report.point.step:
            logger.warning(
                "pinpoint: the engines report version %s at step %d as they did at step %d: give `weight_version` with each "
                "update of the weights, or no measurement says which weights it is of",
                report.weight_version,
                report.point.step,
                before,
            )
