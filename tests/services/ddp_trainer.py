"""A `transformers.Trainer` on two ranks: `torchrun --nproc-per-node 2 -m tests.services.ddp_trainer HOME PREFECT_API`."""

from __future__ import annotations

import sys
from pathlib import Path

from infra.config import Settings
from infra.model import Suite
from tests.infra.examples import dataset
from tests.trainer_integration.test_hugging_face import hugging_face_trainer
from trainer_integration.adapters.hugging_face import add_evaluation
from trainer_integration.dispatcher import DispatchSettings


def main(home: Path, api_url: str) -> None:
    trainer = hugging_face_trainer(home / "out", ddp_backend="gloo")
    settings = Settings(home=home, staging_dir=home / "staging", prefect_api_url=api_url)
    dispatch = DispatchSettings(run="run", suite=Suite(name="suite", datasets=(dataset(),)), every=2, max_in_flight=8)
    evaluation = add_evaluation(trainer, dispatch, settings)
    trainer.train()
    evaluation.drain(1.0)
    evaluation.close()
    assert trainer.args.world_size == 2
    if trainer.args.process_index == 0:
        trainer.save_model(str(home / "last"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
