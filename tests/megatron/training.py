"""A short training loop of Megatron-Core, as every rank of a job runs it, with evaluation in it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from infra.config import Settings
from infra.model import Suite
from tests.infra.examples import dataset
from tests.megatron.cases import SHARD_BYTES, VOCABULARY, Case, files_for, hf_config, prompts
from tests.megatron.cpu_model import build, initialize, logits
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.megatron.exporter import MegatronExporter

STEPS, FAILS_AT, UNLUCKY = 5, 4, 1


class Unlucky(MegatronExporter):
    """On one rank the third export, of step `FAILS_AT`, fails."""

    exports = 0

    def __call__(self, folder: Path) -> None:
        self.exports += 1
        if self.exports == 3 and self.ranks.rank == UNLUCKY:
            self.ranks.together(self._full)
        elif self.exports == 3:
            self.ranks.together(lambda: None)
        super().__call__(folder)

    def _full(self) -> None:
        raise OSError(28, "No space left on device")


def loss_of(chunk: Any, ids: Any) -> Any:
    """Mean cross-entropy of the next token, over this rank's part of the vocabulary and the others'."""
    rows, length = ids.shape
    mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)[None, None].expand(rows, 1, length, length)
    positions = torch.arange(length)[None].expand(rows, length)
    return chunk(ids, positions, mask, labels=ids.roll(-1, 1)).mean()


def optimizer_step(chunk: Any, optimizer: Any, ids: Any) -> float:
    """Ranks of a data-parallel group see other rows, and average their gradients."""
    place, count = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    optimizer.zero_grad()
    loss = loss_of(chunk, ids[place::count])
    loss.backward()
    for name, parameter in chunk.named_parameters():
        if parameter.grad is not None:
            finish_gradient(name, parameter.grad)
    optimizer.step()
    return float(loss.detach())


def finish_gradient(name: str, gradient: Any) -> None:
    """As Megatron's `finalize_model_grads`: norms of queries and keys are whole on each rank, and see its heads only."""
    if "q_layernorm" in name or "k_layernorm" in name:
        dist.all_reduce(gradient, group=parallel_state.get_tensor_model_parallel_group())
    count = parallel_state.get_data_parallel_world_size()
    if count > 1:
        dist.all_reduce(gradient.div_(count), group=parallel_state.get_data_parallel_group())


def trained(rank: int, root: str, api_url: str, tp: int) -> dict[str, Any]:
    """Says what became of each step on this rank: its loss, its logits, and whether the dispatcher skipped it."""
    logging.getLogger("trainer_integration").setLevel(logging.CRITICAL)
    case = Case(tp=tp)
    initialize(tp, 1)
    (chunk,) = build(hf_config(case), tp, 1)
    home = Path(root)
    settings = Settings(home=home, staging_dir=home / "staging", prefect_api_url=api_url)
    dispatch = DispatchSettings(run="run", suite=Suite(name="suite", datasets=(dataset(),)), every=2, max_in_flight=8)

    exporter = Unlucky([chunk], files_for(hf_config(case)), shard_bytes=SHARD_BYTES)
    exporter.prepare()
    evaluation = EvalDispatcher(dispatch, settings, exporter)
    said: dict[int, Any] = {0: evaluation.baseline()}
    seen, losses = {0: logits([chunk], prompts(), VOCABULARY)}, []
    optimizer = torch.optim.SGD(chunk.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        losses.append(optimizer_step(chunk, optimizer, prompts()))
        said[step] = evaluation.on_step(step, final=step == STEPS)
        seen[step] = logits([chunk], prompts(), VOCABULARY)
    evaluation.drain(0.5)
    evaluation.close()
    done = {step: each and (each.skipped or "submitted") for step, each in said.items()}
    return {"done": done, "losses": losses, "logits": {step: found.numpy() for step, found in seen.items()}}
