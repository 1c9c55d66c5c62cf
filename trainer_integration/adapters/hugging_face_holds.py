"""A `transformers.Trainer` with `save_total_limit` keeps a checkpoint that waits for its evaluation until that is over.

    respect_holds(trainer)

before `train()`. The limit is taken over from the Trainer, which asks nobody before it deletes; the newest checkpoint and the
best one stay, as with the Trainer's own.
"""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

from trainer_integration.holds import deletable

if TYPE_CHECKING:
    from transformers import Trainer

logger = logging.getLogger(__name__)


def respect_holds(trainer: Trainer) -> None:
    """Does nothing for a Trainer without `save_total_limit`, which deletes nothing. Every rank calls this alike."""
    from transformers import TrainerCallback

    limit = trainer.args.save_total_limit
    if limit is None or limit <= 0:
        return
    trainer.args.save_total_limit = None
    kind: Any = type("PinpointRetention", (Retention, TrainerCallback), {})
    trainer.add_callback(kind(limit))


class Retention:
    """What `save_total_limit` does, after each save: transformers `trainer_utils.rotate_checkpoints`, but for held ones."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prune(args, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._prune(args, state)

    def _prune(self, args: Any, state: Any) -> None:
        from transformers.trainer_utils import sort_checkpoints

        if not args.should_save:
            return
        try:
            best = state.best_model_checkpoint
            ordered = sort_checkpoints(args.output_dir, use_mtime=True, best_model_checkpoint=best)  # best and newest last
            for folder in deletable(ordered, max(self.limit, 2 if best and str(best) != ordered[-1] else 1)):
                shutil.rmtree(folder, ignore_errors=True)
        except Exception:  # what raises in a callback would end the training
            logger.exception("pinpoint: old checkpoints were not deleted")
