"""A fleet's engines are set as the trainer's rollout engines are, but for what evaluation derives, but for what is overridden.

Three sources, the later beats the earlier: inherited (`rollout_engine_args`), derived, overridden (`engine_args`). What
Pinpoint itself decides for each engine is never inherited and can't be overridden. docs/engines.md has a row for each rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.errors import ConfigError, UnknownKey
from infra.model import FleetSpec

# What decides it instead. Names are the fields of SGLang's ServerArgs, and what its command line also calls them.
OWNED = {
    **dict.fromkeys(("model_path", "model", "tokenizer_path", "served_model_name", "weight_version"), "the snapshot"),
    **dict.fromkeys(("tp_size", "tensor_parallel_size"), "gpus_per_engine"),
    **dict.fromkeys(("host", "fastapi_root_path"), "bind"),
    **dict.fromkeys(("api_key", "admin_api_key"), "the lease"),
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_keyfile_password"), "the lease"),
    **dict.fromkeys(("port", "nccl_port", "grpc_port", "grpc_mode", "smg_grpc_mode", "use_ray"), "the engine's host"),
    **dict.fromkeys(("nnodes", "node_rank", "dist_init_addr", "nccl_init_addr", "base_gpu_id", "gpu_id_step"), "Ray"),
    "config": "engine_args",
    "allow_auto_truncate": "the suite, whose prompts are never cut,",
}
# They share out the tensor-parallel ranks of the rollout engines; another number of ranks can't be shared out alike.
SIZES = ("dp_size", "pp_size", "ep_size", "attn_cp_size")
SIZE_ALIASES = {
    "data_parallel_size": "dp_size",
    "pipeline_parallel_size": "pp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
}
# What a trainer wants to replay beside the text; evaluation pays for them and reads none.
REPLAY = (
    "enable_return_routed_experts",
    "enable_return_indexer_topk",
    "enable_return_hidden_states",
    "enable_return_aux_hidden_states",
)
EMBEDDED = ("max_running_requests",)


def resolve(spec: FleetSpec) -> dict[str, Any]:
    """What each engine of the fleet is started with, but for what Pinpoint owns.

    Raises ConfigError, by name, for what can't be overridden, or for sizes that need more GPUs than an engine has.
    """
    inherited, overridden = named(spec.rollout_engine_args), named(spec.engine_args)
    if spec.engine == "embedded":
        return _embedded(spec, inherited, overridden)
    for name in overridden:
        if name in OWNED:
            raise ConfigError(f"fleet {spec.name}: engine argument {name!r} is not for engine_args; {OWNED[name]} decides it")
    kept = {name: value for name, value in inherited.items() if name not in OWNED}
    settled = {**kept, **derived(spec, inherited), **overridden}
    _check_room(spec, settled)
    return {name: value for name, value in settled.items() if value is not None}


def derived(spec: FleetSpec, inherited: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from evaluation itself. Text goes in and comes out, weights come from files, nothing is replayed."""
    found: dict[str, Any] = dict.fromkeys(REPLAY, False)
    found |= {"skip_tokenizer_init": False, "load_format": "auto", "checkpoint_engine_wait_weights_before_ready": False}
    found |= {"disaggregation_mode": None, "log_level": "warning"}
    rollout = inherited.get("tp_size") or inherited.get("tensor_parallel_size") or 1
    if str(tensor_parallel(spec)) != str(rollout):
        found |= dict.fromkeys(SIZES, 1)
    if spec.gpus_per_engine:
        return found | {"device": None}
    return found | {"device": "cpu", "sleep_on_idle": True}  # an idle SGLang scheduler takes a whole core otherwise


def tensor_parallel(spec: FleetSpec) -> int:
    return max(1, spec.gpus_per_engine)


def with_overrides(spec: FleetSpec, overrides: Mapping[str, Any]) -> FleetSpec:
    """The fleet with single engine arguments overridden; a name that is not in `overrides` stays as it was."""
    changed = spec.model_copy(update={"engine_args": {**named(spec.engine_args), **named(overrides)}})
    resolve(changed)
    return changed


def named(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` under the engine's own field names, however they were spelt: `--dp-size`, `dp-size`, `dp_size`."""
    spelt = {name.lstrip("-").replace("-", "_"): value for name, value in arguments.items()}
    return {SIZE_ALIASES.get(name, name): value for name, value in spelt.items()}


def _embedded(spec: FleetSpec, inherited: Mapping[str, Any], overridden: Mapping[str, Any]) -> dict[str, Any]:
    for name in overridden:
        if name not in EMBEDDED:
            raise UnknownKey(name, where=f"engine_args of fleet {spec.name}, whose engine is the embedded one", known=EMBEDDED)
    given = {name: mapping[name] for mapping in (inherited, overridden) for name in EMBEDDED if mapping.get(name) is not None}
    return {"max_running_requests": spec.max_running_requests, **given}


def _check_room(spec: FleetSpec, settled: Mapping[str, Any]) -> None:
    tensor, pipeline, gpus = tensor_parallel(spec), int(settled.get("pp_size") or 1), spec.gpus_per_engine
    if gpus and tensor * pipeline > gpus:
        numbers = f"pp_size {pipeline} times a tensor-parallel size of {tensor} needs {tensor * pipeline} GPUs an engine"
        raise ConfigError(f"fleet {spec.name}: {numbers}, and gpus_per_engine is {gpus}: override pp_size with 1")
