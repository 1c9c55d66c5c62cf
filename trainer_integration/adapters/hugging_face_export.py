"""What a Trainer's points are read from is there when they are due, or training does not begin.

That is its model, which must be one that can be exported, or, in reuse mode, the checkpoints that it saves.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from infra.errors import ConfigError, PinpointError
from trainer_integration.contract import Exporter
from trainer_integration.options import DispatchSettings

if TYPE_CHECKING:
    from transformers import Trainer

logger = logging.getLogger(__name__)


def exporter_of(trainer: Trainer) -> Exporter:
    """Of a model that this process holds whole, or that all ranks hold together; with LoRA adapters it is merged.

    Raises ConfigError for adapters that can't be merged. Collective, if there are many ranks.
    """
    from trainer_integration.export import HuggingFaceExporter
    from trainer_integration.sharded.lora import MergedLoraExporter
    from trainer_integration.sharded.metadata import ModelFiles
    from trainer_integration.sharded.modules import ModuleExporter
    from trainer_integration.sharded.ranks import Ranks

    _refuse_what_comes_later(trainer)
    model, tokenizer = trainer.model, trainer.processing_class
    if tokenizer is None:
        raise ConfigError("the Trainer has no processing_class: give it the tokenizer, which a snapshot needs")
    is_adapted, alone = hasattr(model, "get_base_model"), trainer.args.world_size == 1
    if alone and not is_adapted:
        return HuggingFaceExporter(model, tokenizer)
    if is_adapted:
        _refuse_prompts(model)
        model = model.get_base_model()
    files = ModelFiles.of(model.config, tokenizer, getattr(model, "generation_config", None))
    if is_adapted:
        return MergedLoraExporter(trainer.model, files, ranks=Ranks.alone() if alone else None)
    return ModuleExporter(model, files)


def _refuse_what_comes_later(trainer: Trainer) -> None:
    """What trains must be what `trainer.model` is now, in a layout that can be staged from."""
    plugin = getattr(getattr(getattr(trainer, "accelerator", None), "state", None), "fsdp_plugin", None)
    if getattr(plugin, "fsdp_version", 2) == 1:
        raise ConfigError("FSDP version 1 flattens parameters, which can't be staged: set version 2 in fsdp_config")


def _refuse_prompts(model: Any) -> None:
    for name, adapter in model.peft_config.items():
        if adapter.is_prompt_learning:
            raise ConfigError(f"adapter {name!r} is {adapter.peft_type.value}, which no plain model computes: train LoRA")


def usable(dispatch: DispatchSettings, export: Exporter | None, trainer: Trainer) -> Exporter | None:
    """None where a model that can't be exported need not be, because its checkpoints are read; else raises ConfigError."""
    try:
        if getattr(trainer, "model_init", None) is not None:
            raise ConfigError(
                "the Trainer makes another model by model_init when training begins, and the exporter would keep this one: give"
                " the Trainer the model itself"
            )
        made = export or exporter_of(trainer)
        _refuse_unexportable(made)
    except ConfigError as error:
        if dispatch.exports or export is not None:
            raise
        logger.warning("pinpoint: only steps that the Trainer saves can be evaluated: %s", error)
        return None
    return made


def _refuse_unexportable(export: Exporter) -> None:
    """Collective. It settles nothing: a Trainer may yet shard the model, when training begins."""
    from trainer_integration.export import HuggingFaceExporter
    from trainer_integration.sharded.exporter import StagedExporter

    staged = export.staged if isinstance(export, HuggingFaceExporter) else export
    if not isinstance(staged, StagedExporter) or staged.plan is not None:
        return
    try:
        staged.prepare()
    except PinpointError as error:
        raise ConfigError(f"{error}; give `export` an exporter that can, see docs/export.md") from error
    staged.plan = None


def refuse_unsaved(args: Any, dispatch: DispatchSettings) -> None:
    """Raises ConfigError unless the Trainer saves a checkpoint at each step at which `save_hf` is to be read."""
    if dispatch.save_hf is None:
        return
    strategy, steps = str(getattr(args.save_strategy, "value", args.save_strategy)), args.save_steps
    interval = int(dispatch.save_interval or 0)
    wanted = f"save_interval = {interval} of DispatchSettings (save_hf) needs a checkpoint each {interval} steps"
    remedy = f"set save_strategy='steps' and save_steps={interval}, or leave save_hf and save_interval out"
    if strategy != "steps":
        raise ConfigError(f"{wanted}, and the Trainer has save_strategy = {strategy!r}: {remedy}")
    if 0 < steps < 1:
        if args.max_steps <= 0:
            raise ConfigError(
                f"{wanted}, and the Trainer has save_steps = {steps}, a share of steps it has not counted: {remedy}"
            )
        steps = math.ceil(args.max_steps * steps)
    if steps <= 0 or interval % steps:
        raise ConfigError(f"{wanted}, and the Trainer has save_steps = {args.save_steps}: {remedy}")
