"""The tiny trainer as its own process, the way a real one runs; what happens in it is told as JSON lines on stdout.

Evaluation is asked for through the dispatcher alone, and nothing of Prefect and Ray is imported. SIGTERM ends it as an exit
does, so that what it shares with its producer in memory is given back.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from infra.config import load_settings
from infra.errors import PinpointError
from infra.model import EvalReport
from trainer_integration.dispatcher import Dispatched, DispatchSettings, EvalDispatcher
from trainer_integration.export import HuggingFaceExporter
from trainer_integration.tiny_trainer.addition import split
from trainer_integration.tiny_trainer.config import StepInfo, TrainConfig
from trainer_integration.tiny_trainer.suite import SUITE, pairs_of, reasoning_gym_dataset, write_suite


class Trainer:
    """Connects the training loop, which knows nothing of evaluation, with the dispatcher."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        gym = reasoning_gym_dataset(arguments.problems, seed=arguments.seed)
        excluded = pairs_of(gym)
        make = TrainConfig.small if arguments.small else TrainConfig
        config = make(seed=arguments.seed, steps=arguments.steps)
        self.config = replace(config, excluded=excluded)
        _, held_out = split(arguments.seed, held_out=self.config.held_out, excluded=excluded)
        suite = write_suite(Path(arguments.folder), held_out[: arguments.problems], gym)
        self.dispatch = DispatchSettings(
            run=arguments.run, suite=suite, every=arguments.every, max_in_flight=4, overflow_policy=arguments.overflow_policy
        )
        self.dispatcher: EvalDispatcher | None = None
        self.told = 0
        self.awaited: set[tuple[int, int]] = set()  # step and attempt of the points without a record

    def on_step(self, info: StepInfo) -> None:
        if self.dispatcher is None:
            export = HuggingFaceExporter(info.model, info.tokenizer)
            self.dispatcher = EvalDispatcher(self.dispatch, load_settings(), export)
        dispatcher = self.dispatcher
        done = dispatcher.baseline() if info.step == 0 else dispatcher.on_step(info.step, final=info.final)
        if done is not None:
            self.keep(info)
            self.awaited.add((done.point.step, done.point.attempt))
            tell("dispatched", **_dispatched(done))
        self.tell_records()

    def keep(self, info: StepInfo) -> None:
        """A checkpoint of the user's own, which Pinpoint neither reads nor deletes."""
        if self.arguments.keep_checkpoints:
            folder = Path(self.arguments.keep_checkpoints) / f"step_{info.step}"
            info.model.save_pretrained(folder)
            info.tokenizer.save_pretrained(folder)

    def tell_records(self) -> None:
        records = self.dispatcher.records if self.dispatcher else []
        for record in records[self.told :]:
            scores = {}
            if isinstance(record, EvalReport):
                scores = {r.dataset: r.score.mean if r.score else None for r in record.results}
            self.awaited.discard((record.point.step, record.point.attempt))
            tell("record", step=record.point.step, kind=record.kind, scores=scores)
        self.told = len(records)

    def finish(self) -> None:
        """Training is over; the last points may not be. Those that have no record after `drain_s` are told as missing."""
        if self.dispatcher is None:
            return
        deadline = time.monotonic() + self.arguments.drain_s
        while not (drained := self.dispatcher.drain(0.5)) and time.monotonic() < deadline:
            self.tell_records()
        self.tell_records()
        if self.awaited and not drained:
            tell("missing", steps=sorted({step for step, _ in self.awaited}))
        self.dispatcher.close()


def main() -> int:
    signal.signal(signal.SIGTERM, _exit)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    from trainer_integration.tiny_trainer.loop import train
    from trainer_integration.tiny_trainer.producer import ProducerFailed

    try:
        trainer = Trainer(_arguments())
        train(trainer.config, trainer.on_step, lambda progress: tell("progress", **asdict(progress)))
        tell("trained")
        trainer.finish()
    except ProducerFailed as error:
        logging.getLogger(__name__).exception("the producer failed")
        tell("error", message=str(error), bad_input=False)
        return 1
    except PinpointError as error:
        tell("error", message=str(error), bad_input=True)
        return 2
    return 0


def _exit(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not break the clean-up
    raise SystemExit(128 + number)


def tell(event: str, **data: Any) -> None:
    print(json.dumps({"event": event, **data}), flush=True)


def _dispatched(done: Dispatched) -> dict[str, Any]:
    return {
        "step": done.point.step,
        "attempt": done.point.attempt,
        "suite": SUITE,
        "export_time_seconds": done.export_time_seconds,
        "waited_seconds": done.waited_seconds,
        "skipped": done.skipped,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer_integration.tiny_trainer", description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--folder", required=True, help="where the held-out problems are written")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=400, help="prompts of each dataset")
    parser.add_argument("--overflow-policy", choices=("backpressure", "skip"), default="backpressure")
    parser.add_argument("--drain-s", type=float, default=300.0)
    parser.add_argument("--keep-checkpoints", help="folder in which the model is saved at each point")
    parser.add_argument("--small", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
