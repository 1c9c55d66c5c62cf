"""Each combination of options that can't be meant is refused with what is wrong and what to do; docs/trainers.md lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.black_box import evaluation_class
from infra.engines.arguments import OWNED, named
from infra.errors import ConfigError
from trainer_integration.locations import fault_of_pattern

if TYPE_CHECKING:
    from trainer_integration.eval_options import EvalOptions


def refuse_combinations(options: EvalOptions) -> None:
    """Raises ConfigError."""
    _refuse_data(options)
    _refuse_overrides(options)
    if options.black_box is not None:
        _refuse_black_box(options, options.black_box)
    if options.eval_uses_snapshots:
        _refuse_snapshots(options)
    if options.posture == "fleet":
        _refuse_fleet(options)


def _refuse_data(options: EvalOptions) -> None:
    if len(options.eval_prompt_data) % 2:
        words = " ".join(options.eval_prompt_data)
        raise ConfigError(f"--eval-prompt-data takes pairs of a name and a path, and got an odd number of words: {words}")
    if options.eval_prompt_data and options.eval_config:
        raise ConfigError("--eval-prompt-data and --eval-config both name the data: give one of them")


def _refuse_overrides(options: EvalOptions) -> None:
    for name in named(options.eval_sglang):
        if name in ("tp_size", "tensor_parallel_size"):
            raise ConfigError(f"--eval-sglang-{_flag(name)} can't be set: --eval-num-gpus-per-engine is the size")
        if name in OWNED:
            raise ConfigError(f"--eval-sglang-{_flag(name)} can't be set: {OWNED[name]} decides it")
    if options.eval_sglang and options.posture != "fleet":
        first = _flag(next(iter(options.eval_sglang)))
        raise ConfigError(f"--eval-sglang-{first} is for engines of evaluation's own: set --eval-num-gpus, or leave it out")


def _refuse_black_box(options: EvalOptions, path: str) -> None:
    try:
        evaluation_class(path)
    except ConfigError as error:
        raise ConfigError(f"--eval-function-path: {error}") from None
    if options.eval_num_gpus > 0:
        raise ConfigError(
            f"--eval-num-gpus {options.eval_num_gpus} and --eval-function-path {path} exclude each other: "
            "a fleet, or a black box that brings its own engines"
        )


def _refuse_snapshots(options: EvalOptions) -> None:
    asks = f"--eval-num-gpus {options.eval_num_gpus}" if options.posture == "fleet" else "--eval-function-path"
    if options.eval_interval is None:
        raise ConfigError(f"{asks} needs --eval-interval: without it nothing is ever evaluated")
    if options.colocate:
        raise ConfigError(
            f"{asks} evaluates snapshots while training goes on, and --colocate shares its GPUs with training: leave one out"
        )
    if options.eval_hf_dir is None and options.save_hf is None:
        raise ConfigError(
            f"{asks} evaluates snapshots, and they have no source: set --eval-hf-dir to export them, or --save-hf and "
            "--save-interval to use checkpoints that are saved anyway"
        )
    if options.reuses_checkpoints:
        _refuse_reuse(options)


def _refuse_reuse(options: EvalOptions) -> None:
    if fault := fault_of_pattern(options.save_hf or "", "{rollout_id}"):
        raise ConfigError(f"--save-hf {options.save_hf} {fault}")
    interval, saved = options.eval_interval, options.save_interval
    if saved is None or interval is None or interval % saved:
        raise ConfigError(
            f"--eval-interval {interval} is no multiple of --save-interval {saved}, so not every due step has a checkpoint: "
            "change one, or set --eval-hf-dir to export"
        )


def _refuse_fleet(options: EvalOptions) -> None:
    if options.eval_num_gpus % options.eval_num_gpus_per_engine:
        raise ConfigError(
            f"--eval-num-gpus {options.eval_num_gpus} is no multiple of --eval-num-gpus-per-engine "
            f"{options.eval_num_gpus_per_engine}"
        )
    if not options.eval_prompt_data and not options.eval_config:
        raise ConfigError("there is nothing to evaluate on: set --eval-prompt-data or --eval-config")


def _flag(name: str) -> str:
    return name.replace("_", "-")
