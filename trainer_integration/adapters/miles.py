"""A dispatcher of the call shape that `train_async.py` of Miles has, which slime's can be given, with Pinpoint behind it.

    dispatcher = EvalDispatcher(args, actor_model, rollout_manager)
    await dispatcher.dispatch(0, hf_dir=args.hf_checkpoint)  # before training
    await dispatcher.dispatch(rollout_id)                    # at each due rollout; the trainer has its own schedule
    await dispatcher.drain()                                 # after the last

With `--eval-num-gpus` the actors export a snapshot, or the checkpoint that they have saved is taken, and Pinpoint evaluates it
while training goes on. Without, the trainer's own evaluation is awaited, behind the gate of the producer that fills the
engines. Neither raises; a point that is not measured is reported to the rollout manager, for which training waits a second at
most, and is in the store and the Prefect UI. An evaluation that the gate did not wait for is logged as `eval/gate_lapsed`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from infra.config import Settings
from infra.errors import ConfigError
from infra.model import SkippedPoint, SkipReason
from trainer_integration import dispatcher as core
from trainer_integration.adapters.miles_live import STANDARD, LivePoints
from trainer_integration.eval_options import EvalOptions
from trainer_integration.evaluation_path import resolve_path
from trainer_integration.pause_gate import Gate, Pause, refuse_early

logger = logging.getLogger(__name__)
EXPORT_TIMEOUT_S = 3600.0  # all ranks are in it together: what takes longer has hung
LIVE_TIMEOUT_S = 3600.0
REPORT_TIMEOUT_S = 60.0
REPORT_WAIT_S = 1.0  # of a dispatch, for all that it reports; then it goes on, and the reports do


class ActorModel(Protocol):
    """The group of training actors. Returns when all ranks have written their part of the Hugging Face folder."""

    def export_hf(self, rollout_id: int, hf_dir: str) -> Awaitable[Any]: ...


class EvalDispatcher:
    """One training run's; in its driver.

    Raises, from the constructor alone, ConfigError and StoreError, and ServiceUnreachable for a gate that can't be asked whose
    it is.
    """

    def __init__(
        self,
        args: Any,
        actor_model: ActorModel,
        rollout_manager: Any,
        *,
        settings: Settings | None = None,
        gate: Gate | None = None,
        log: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        """`settings` are by default this machine's; `log` is given each point's metrics, once it has ended.

        `gate` is the producer's, which fills the engines that a live evaluation is on.
        """
        self.args, self.options = args, EvalOptions.from_namespace(args)
        self.actor_model, self.rollout_manager = actor_model, rollout_manager
        self.gate, self.log = gate, log
        self._core: core.EvalDispatcher | None = None
        self._points: LivePoints | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rollout_id, self._seen = 0, 0
        self._reported: set[tuple[int, int]] = set()
        self._reports: set[asyncio.Task[None]] = set()
        if self.options.posture == "black_box":
            raise ConfigError(
                f"{self.options.black_box} is run by the trainer's own dispatcher; this one is for --eval-num-gpus and live"
            )
        if self.options.eval_interval is not None:
            self._refuse_unpaused()
        self._settings = settings
        if self.options.eval_uses_snapshots:
            start = int(getattr(args, "start_rollout_id", None) or 0)
            self._core = core.EvalDispatcher(self.options.dispatch(start_step=start), self._own_settings(), self._export)
        elif self.options.eval_interval is not None:
            self._points = self._live_points()

    async def dispatch(self, rollout_id: int, hf_dir: str | None = None, force: bool = False) -> None:
        """A point at `rollout_id`, of `hf_dir` if that is given. Returns when training may go on."""
        older = set(self._reports)
        try:
            final = force or self._is_last(rollout_id)
            if self._core is None:
                await self._live(rollout_id, final)
            else:
                await self._snapshot(self._core, rollout_id, hf_dir, final)
        except Exception:
            logger.exception("pinpoint: evaluation at rollout %d went wrong", rollout_id)
            self._report(rollout_id, SkipReason.CRASHED.value)
        await _sent(self._reports - older, REPORT_WAIT_S)

    async def drain(self, deadline_s: float | None = None) -> bool:
        """Waits for the points under way, by default as long as one may take; False if some have no record by then."""
        drained = True
        if self._core is not None:
            drained = await self._drained(self._core, deadline_s)
        elif self._points is not None:
            drained = await asyncio.to_thread(self._points.drained, REPORT_TIMEOUT_S if deadline_s is None else deadline_s)
        await _sent(self._reports, REPORT_TIMEOUT_S)
        return drained

    def close(self) -> None:
        for opened in (self._core, self._points):
            if opened is not None:
                opened.close()

    def _own_settings(self) -> Settings:
        return self._settings or self.options.settings()

    def _live_points(self) -> LivePoints:
        return LivePoints(self.options, self._own_settings())

    async def _drained(self, dispatcher: core.EvalDispatcher, deadline_s: float | None) -> bool:
        try:
            longest = dispatcher.dispatch.deadline_s if deadline_s is None else deadline_s
            drained = await asyncio.to_thread(dispatcher.drain, longest)
            self._news(dispatcher)
        except Exception:
            logger.exception("pinpoint: waiting for the last points went wrong")
            return False
        return drained

    async def _snapshot(self, dispatcher: core.EvalDispatcher, rollout_id: int, hf_dir: str | None, final: bool) -> None:
        self._news(dispatcher)
        checkpoint = dispatcher.dispatch.saved_at(rollout_id) if hf_dir is None else hf_dir
        self._loop, self._rollout_id = asyncio.get_running_loop(), rollout_id
        done = await asyncio.to_thread(dispatcher.evaluate, rollout_id, checkpoint, final=final)
        if done is None:
            self._report(rollout_id, SkipReason.CRASHED.value)
        elif done.skipped is not None:
            self._reported.add((done.point.step, done.point.attempt))
            self._report(rollout_id, done.skipped)

    def _export(self, folder: Path) -> None:
        """In the thread that dispatches; the actors are called on the driver's own event loop."""
        if self._loop is None:
            raise RuntimeError("nothing is being dispatched")
        exporting = asyncio.run_coroutine_threadsafe(self._exported(folder), self._loop)
        exporting.result()

    async def _exported(self, folder: Path) -> None:
        async with asyncio.timeout(EXPORT_TIMEOUT_S):
            await self.actor_model.export_hf(self._rollout_id, str(folder))

    async def _live(self, rollout_id: int, final: bool) -> None:
        if self._points is None:
            self._points = await asyncio.to_thread(self._live_points)
        points = self._points
        try:
            await asyncio.to_thread(points.begin, rollout_id, final)
            await self._evaluated(rollout_id)
            points.measured()
        except TimeoutError:
            message = f"evaluation at rollout {rollout_id} took more than {LIVE_TIMEOUT_S:g} s"
            logger.error("pinpoint: %s", message)
            await self._skipped(points, rollout_id, SkipReason.TIMEOUT, message)
        except Exception as error:
            logger.exception("pinpoint: evaluation at rollout %d went wrong", rollout_id)
            await self._skipped(points, rollout_id, SkipReason.CRASHED, f"{type(error).__name__}: {error}")
        finally:
            points.leave()

    async def _evaluated(self, rollout_id: int) -> None:
        """Raises what the evaluation does, TimeoutError, or ConfigError for one beside its producer."""
        if self.options.eval_interval is None:
            self._refuse_unpaused()
        pause = Pause()
        try:
            with ExitStack() as closed:
                if self.gate is not None:
                    pause = await asyncio.to_thread(closed.enter_context, self.gate.closed(LIVE_TIMEOUT_S))
                async with asyncio.timeout(LIVE_TIMEOUT_S):
                    await self.rollout_manager.eval.remote(rollout_id)
        finally:
            if pause.lapsed:
                logger.warning("pinpoint: the gate was open again before the evaluation at rollout %d had ended", rollout_id)
            if self.gate is not None:
                self._log({"eval/step": float(rollout_id), "eval/gate_lapsed": float(pause.lapsed)})

    async def _skipped(self, points: LivePoints, rollout_id: int, reason: SkipReason, message: str) -> None:
        metrics = await asyncio.to_thread(points.skip, reason, message)
        self._report(rollout_id, reason.value)
        self._log(metrics)

    def _refuse_unpaused(self) -> None:
        """Raises ConfigError for a live evaluation beside the producer that fills its engines, or behind a gate that opens."""
        if self.options.posture == "live" and self.gate is not None:
            refuse_early(self.gate, LIVE_TIMEOUT_S)
        if self.options.posture == "live":
            resolve_path(
                "live",
                standard=STANDARD,
                rollout_function_path=self.options.rollout_function_path,
                paused=self.gate.producer if self.gate is not None else None,
            )

    def _news(self, dispatcher: core.EvalDispatcher) -> None:
        """Points that have ended: their metrics are logged, and skips that are not reported yet are."""
        for metrics in dispatcher.new_metrics():
            self._log(metrics)
        records = dispatcher.records
        for record in records[self._seen :]:
            if isinstance(record, SkippedPoint) and (record.point.step, record.point.attempt) not in self._reported:
                self._report(record.point.step, record.reason)
        self._seen = len(records)

    def _log(self, metrics: dict[str, float]) -> None:
        """A tracker that is away costs its line, and no point."""
        try:
            if self.log is not None:
                self.log(metrics)
        except Exception:
            logger.exception("pinpoint: the metrics of step %g could not be logged", metrics["eval/step"])

    def _report(self, rollout_id: int, reason: str) -> None:
        """Goes on beside training; `drain` waits for it."""
        task = asyncio.create_task(self._deliver(rollout_id, reason))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _deliver(self, rollout_id: int, reason: str) -> None:
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                await self.rollout_manager.report_eval_skip.remote(rollout_id, reason)
        except Exception:
            logger.exception("pinpoint: the skip of rollout %d, %s, could not be reported", rollout_id, reason)

    def _is_last(self, rollout_id: int) -> bool:
        count = getattr(self.args, "num_rollout", None)
        return count is not None and rollout_id >= count - 1


async def _sent(reports: set[asyncio.Task[None]], within_s: float) -> None:
    if reports:
        await asyncio.wait(reports, timeout=within_s)
