"""What a training run asks of evaluation, in the words of Miles' flags; what can't be meant is refused before training begins.

Each option may come from an argument, a variable, a file or its default; the first that says something wins. From them
follow, here and nowhere else, the posture and whether evaluation uses snapshots.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from infra.config import OPTIONS_PREFIX, Settings, load_settings, parse, read_mapping
from infra.engines.arguments import OWNED, named, resolve
from infra.errors import ConfigError, UnknownKey
from infra.miles_suite import read_eval_config, suite_of_pairs
from infra.model import BlackBoxSpec, FleetSpec, Suite
from trainer_integration.options import DispatchSettings

Posture = Literal["fleet", "black_box", "live"]
SIZE_NAMES = ("tp_size", "tensor_parallel_size")
# What Miles' namespace has under sglang_* that is no argument of a server.
NO_SERVER_ARGUMENTS = ("router_", "server_concurrency", "model_routers", "config")


class EvalOptions(BaseModel):
    """Names are those of the flags. `sglang` and `eval_sglang` hold the arguments after that prefix."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    eval_run: str | None = Field(default=None, description="name of the run; default: wandb_group, or the name of --save")
    eval_interval: int | None = Field(default=None, ge=1, description="steps between points; none: no evaluation")
    eval_prompt_data: tuple[str, ...] = Field(default=(), description="pairs: name path name path ...")
    eval_config: Path | None = Field(default=None, description="YAML file, eval: {defaults, datasets}")
    rm_type: str | None = Field(default=None, description="grader of datasets that name none")
    input_key: str | None = Field(default=None, description="key of a row that holds its prompt")
    label_key: str | None = Field(default=None, description="key of a row that holds its answer")
    eval_input_key: str | None = Field(default=None, description="the same, for evaluation")
    eval_label_key: str | None = Field(default=None, description="the same, for evaluation")
    apply_chat_template: bool = Field(default=False, description="render prompts with the snapshot's chat template")
    n_samples_per_eval_prompt: int = Field(default=1, ge=1, description="responses to each prompt")
    eval_max_response_len: int | None = Field(default=None, description="default: rollout_max_response_len")
    eval_temperature: float | None = Field(default=None, description="default: rollout_temperature")
    eval_top_p: float | None = Field(default=None, description="default: rollout_top_p")
    eval_top_k: int | None = Field(default=None, description="default: rollout_top_k")
    rollout_max_response_len: int | None = None
    rollout_temperature: float | None = None
    rollout_top_p: float | None = None
    rollout_top_k: int | None = None
    eval_num_gpus: int = Field(default=0, ge=0, description="GPUs of the fleet; 0: the trainer's own engines (live)")
    eval_num_gpus_per_engine: int = Field(default=1, ge=1, description="GPUs of an engine, its tensor-parallel size")
    eval_hf_dir: Path | None = Field(default=None, description="where models are staged; unset with --save-hf: reuse mode")
    save_hf: str | None = Field(default=None, description="checkpoints that the trainer saves, with {rollout_id}")
    save_interval: int | None = Field(default=None, ge=1, description="steps between those checkpoints")
    eval_max_in_flight: int = Field(default=2, ge=1, description="points that may be under way at once")
    eval_overflow_policy: Literal["backpressure", "skip"] = Field(default="backpressure", description="what happens above that")
    eval_keep_snapshots: int = Field(default=0, ge=0, description="evaluated snapshots that stay in the store")
    eval_function_path: str | None = Field(default=None, description="a CheckpointEvalFn class: black box")
    eval_function_settings: dict[str, Any] = Field(default_factory=dict, description="given to that class")
    skip_eval_before_train: bool = Field(default=False, description="no baseline")
    hf_checkpoint: str | None = Field(default=None, description="what training starts from: the baseline is measured on it")
    colocate: bool = False
    rollout_function_path: str | None = None
    rollout_num_gpus_per_engine: int | None = None
    sglang: dict[str, Any] = Field(default_factory=dict, description="of the rollout engines, which the fleet inherits")
    eval_sglang: dict[str, Any] = Field(default_factory=dict, description="overrides, by field")

    @classmethod
    def load(cls, file: str | Path | None = None, **arguments: Any) -> Self:
        """Arguments that are None say nothing. Raises UnknownKey, ConfigError."""
        from_file = read_mapping(Path(file)) if file else {}
        for key in from_file:
            if key not in cls.model_fields:
                raise UnknownKey(str(key), where=str(file), known=cls.model_fields)
        given = {name: value for name, value in arguments.items() if value is not None}
        return parse(cls, {**from_file, **_variables(cls), **given}, where=str(file or "evaluation options"))

    @classmethod
    def from_namespace(cls, args: Any) -> Self:
        """Of argparse's, by `add_eval_arguments` or a trainer's own parser. What it lacks, or has as None, has its default."""
        given = {name: value for name, value in vars(args).items() if value is not None}
        values = {name: given[name] for name in cls.model_fields if name in given}
        values["sglang"] = values.get("sglang") or _after("sglang_", given, NO_SERVER_ARGUMENTS)
        values["eval_sglang"] = values.get("eval_sglang") or _after("eval_sglang_", given, ())
        made = cls.load(given.get("eval_settings"), **{name: value for name, value in values.items() if value != {}})
        derived = given.get("wandb_group") or _folder_name(given.get("save"))  # said by nobody: a variable or a file beats it
        return made if made.eval_run or not derived else made.model_copy(update={"eval_run": str(derived)})

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        from trainer_integration.refusals import refuse_combinations

        refuse_combinations(self)
        return self

    @property
    def black_box(self) -> str | None:
        """Miles' own parser fills `eval_function_path` with the rollout function, which is none."""
        return None if self.eval_function_path == self.rollout_function_path else self.eval_function_path

    @property
    def posture(self) -> Posture:
        if self.black_box is not None:
            return "black_box"
        return "fleet" if self.eval_num_gpus > 0 else "live"

    @property
    def eval_uses_snapshots(self) -> bool:
        return self.posture != "live"

    @property
    def reuses_checkpoints(self) -> bool:
        """Whether due steps are measured where the trainer saves them, and nothing is exported."""
        return self.eval_uses_snapshots and self.eval_hf_dir is None and self.save_hf is not None

    @property
    def baseline(self) -> bool:
        return self.eval_interval is not None and not self.skip_eval_before_train

    def suite(self) -> Suite:
        """Raises ConfigError for data that can't be read, or if there is none."""
        flags = {
            "rm_type": self.rm_type,
            "input_key": self.eval_input_key or self.input_key,
            "label_key": self.eval_label_key or self.label_key,
            "apply_chat_template": self.apply_chat_template,
            "n_samples_per_eval_prompt": self.n_samples_per_eval_prompt,
            "max_response_len": _first(self.eval_max_response_len, self.rollout_max_response_len),
            "temperature": _first(self.eval_temperature, self.rollout_temperature),
            "top_p": _first(self.eval_top_p, self.rollout_top_p),
            "top_k": _first(self.eval_top_k, self.rollout_top_k),
        }
        if self.eval_config is not None:
            return read_eval_config(self.eval_config, flags)
        if self.black_box is not None and not self.eval_prompt_data:
            return Suite(name="eval")  # it has data of its own
        return suite_of_pairs(self.eval_prompt_data, flags)

    def dispatch(self, *, start_step: int = 0) -> DispatchSettings:
        """Raises ConfigError, also for a run without evaluation or without a name, and for the live posture."""
        if self.eval_interval is None:
            raise ConfigError("no evaluation was asked for: set --eval-interval")
        if not self.eval_run:
            raise ConfigError("the run has no name for its points: set --eval-run, or PINPOINT_EVAL_RUN")
        if not self.eval_uses_snapshots:
            raise ConfigError(
                "the posture is live, which measures no snapshots: use LiveEvaluator (docs/live.md), or set --eval-num-gpus"
            )
        reuse = self.reuses_checkpoints
        values = {
            "run": self.eval_run,
            "suite": self.suite(),
            "every": self.eval_interval,
            "start_step": start_step,
            "max_in_flight": self.eval_max_in_flight,
            "overflow_policy": self.eval_overflow_policy,
            "keep_snapshots": 0 if reuse else self.eval_keep_snapshots,
            "save_hf": self.save_hf if reuse else None,
            "save_interval": self.save_interval if reuse else None,
            "baseline_checkpoint": self.hf_checkpoint if self.baseline else None,
            "black_box": self._black_box_spec(),
        }
        return parse(DispatchSettings, values, where="evaluation options")

    def _black_box_spec(self) -> BlackBoxSpec | None:
        return BlackBoxSpec(function=self.black_box, settings=self.eval_function_settings) if self.black_box else None

    def settings(self, file: str | Path | None = None, **arguments: Any) -> Settings:
        """This machine's, with the staging folder and the fleet that the options say."""
        settings = load_settings(file, staging_dir=self.eval_hf_dir, **arguments)
        if self.posture != "fleet":
            return settings
        fleet = self._fleet(settings.fleet)
        resolve(fleet)
        return settings.model_copy(update={"fleet": fleet})

    def _fleet(self, base: FleetSpec) -> FleetSpec:
        inherited = {"tp_size": self.rollout_num_gpus_per_engine} if self.rollout_num_gpus_per_engine else {}
        values = base.model_dump(exclude_unset=True, exclude={"num_engines"}) | {
            "engine": "sglang",
            "num_gpus": self.eval_num_gpus,
            "gpus_per_engine": self.eval_num_gpus_per_engine,
            "rollout_engine_args": {**_passed_on(base.rollout_engine_args), **_passed_on(self.sglang), **inherited},
            "engine_args": {**named(base.engine_args), **named(self.eval_sglang)},
        }
        return parse(FleetSpec, values, where="the evaluation fleet")


def _variables(options: type[EvalOptions]) -> dict[str, Any]:
    """PINPOINT_EVAL_INTERVAL for `eval_interval`, PINPOINT_EVAL_SAVE_HF for `save_hf`; their values are YAML."""
    known = {OPTIONS_PREFIX + name.removeprefix("eval_").upper(): name for name in sorted(options.model_fields, reverse=True)}
    found: dict[str, Any] = {}
    for variable, text in os.environ.items():
        if not variable.startswith(OPTIONS_PREFIX):
            continue
        if variable not in known:
            raise UnknownKey(variable, where="the environment", known=known)
        try:
            found[known[variable]] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"{variable} is not YAML: {text!r:.80}") from None
    return found


def _after(prefix: str, given: Mapping[str, Any], without: tuple[str, ...]) -> dict[str, Any]:
    """Attributes with `prefix`, without it. The prefix alone is the mapping's own name."""
    found = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    return {name: value for name, value in found.items() if name and not name.startswith(without or "\0")}


def _passed_on(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Without what Pinpoint decides, but for the size: keys and passwords are among it, and Prefect shows the request."""
    return {name: value for name, value in named(arguments).items() if name not in OWNED or name in SIZE_NAMES}


def _folder_name(folder: str | Path | None) -> str | None:
    return Path(folder).name or None if folder else None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
