"""Every row of the table in docs/engines.md: a fleet's engines are set as the trainer's rollout engines are, unless."""

from __future__ import annotations

from typing import Any

import pytest

from infra.engines.arguments import OWNED, REPLAY, SIZES, resolve, with_overrides
from infra.engines.options import Option, render, settle
from infra.errors import ConfigError, UnknownKey
from infra.model import FleetSpec

OPTIONS = {
    "mem_fraction_static": Option(("--mem-fraction-static",), False, None),
    "fp8_gemm_runner_backend": Option(("--fp8-gemm-backend",), False, None),
    "cuda_graph_bs_decode": Option(("--cuda-graph-bs-decode",), False, "+"),
    "prefill_buckets": Option(("--prefill-buckets",), False, None),
    "preferred_sampling_params": Option(("--preferred-sampling-params",), False, None),
    "disable_radix_cache": Option(("--disable-radix-cache",), True, 0),
    "enable_tf32_matmul": Option(("--enable-tf32-matmul", "--no-enable-tf32-matmul"), True, 0),
    "ep_size": Option(("--ep-size", "--expert-parallel-size", "--ep"), False, None),
    "pp_size": Option(("--pp-size",), False, None),
}


def fleet(rollout: dict[str, Any] | None = None, *, gpus: int = 4, each: int = 2, **override: Any) -> FleetSpec:
    return FleetSpec(
        engine="sglang", num_gpus=gpus, gpus_per_engine=each, rollout_engine_args=rollout or {}, engine_args=override
    )


def test_a_setting_of_the_rollout_engines_is_inherited() -> None:
    assert resolve(fleet({"mem_fraction_static": 0.7}))["mem_fraction_static"] == 0.7


def test_an_override_beats_what_is_inherited() -> None:
    assert resolve(fleet({"mem_fraction_static": 0.7}, mem_fraction_static=0.9))["mem_fraction_static"] == 0.9


def test_an_override_beats_what_is_derived() -> None:
    settled = resolve(fleet({"tp_size": 8}, ep_size=2, enable_return_routed_experts=True, log_level="debug"))
    assert (settled["ep_size"], settled["enable_return_routed_experts"], settled["log_level"]) == (2, True, "debug")


def test_an_override_with_none_leaves_the_setting_to_the_engine() -> None:
    assert "mem_fraction_static" not in resolve(fleet({"mem_fraction_static": 0.7}, mem_fraction_static=None))


def test_an_override_with_false_switches_an_inherited_switch_off() -> None:
    settled = resolve(fleet({"disable_radix_cache": True}, disable_radix_cache=False))
    assert "--disable-radix-cache" not in render(settled, None)


@pytest.mark.parametrize("name", SIZES)
def test_a_parallel_size_falls_back_to_one_when_the_tensor_parallel_sizes_differ(name: str) -> None:
    assert resolve(fleet({"tp_size": 8, name: 4}))[name] == 1


@pytest.mark.parametrize("name", ["dp_size", "ep_size", "attn_cp_size"])
def test_a_parallel_size_is_inherited_when_the_tensor_parallel_sizes_agree(name: str) -> None:
    assert resolve(fleet({"tp_size": 2, name: 2}))[name] == 2


@pytest.mark.parametrize("spelling", ["tensor_parallel_size", "--tensor-parallel-size"])
def test_the_rollout_engines_tensor_parallel_size_is_found_under_its_other_name(spelling: str) -> None:
    assert resolve(fleet({spelling: 2, "expert-parallel-size": 2}))["ep_size"] == 2


def test_pipeline_stages_beyond_the_gpus_of_an_engine_are_refused_with_numbers() -> None:
    with pytest.raises(ConfigError, match=r"pp_size 2 times a tensor-parallel size of 2 needs 4 GPUs .* is 2: override"):
        resolve(fleet({"tp_size": 2, "pp_size": 2}))
    assert resolve(fleet({"tp_size": 2, "pp_size": 2}, pp_size=1))["pp_size"] == 1


@pytest.mark.parametrize("name", REPLAY)
def test_a_replay_side_channel_is_off(name: str) -> None:
    assert resolve(fleet({name: True}))[name] is False


def test_text_goes_in_and_weights_come_from_files() -> None:
    settled = resolve(fleet({"skip_tokenizer_init": True, "load_format": "dummy", "disaggregation_mode": "decode"}))
    assert (settled["skip_tokenizer_init"], settled["load_format"]) == (False, "auto")
    assert "disaggregation_mode" not in settled


def test_the_device_is_the_cpu_without_gpus_and_the_engines_own_choice_with_them() -> None:
    on_cpu = FleetSpec(engine="sglang", rollout_engine_args={"device": "cuda"})
    assert (resolve(on_cpu)["device"], resolve(on_cpu)["sleep_on_idle"]) == ("cpu", True)
    assert resolve(fleet({"device": "cpu"})).keys().isdisjoint({"device", "sleep_on_idle"})


@pytest.mark.parametrize("name", OWNED)
def test_what_pinpoint_decides_is_not_inherited_and_refused_by_name_as_an_override(name: str) -> None:
    assert name not in resolve(fleet({name: "rollout"}))
    mine: dict[str, Any] = {name: "mine"}
    with pytest.raises(ConfigError, match=f"engine argument '{name}' is not for engine_args; .* decides it"):
        resolve(fleet(**mine))


def test_single_arguments_are_overridden_by_any_spelling_and_the_others_stay() -> None:
    spec = with_overrides(fleet(mem_fraction_static=0.9, log_level="info"), {"--mem-fraction-static": 0.5})
    assert spec.engine_args == {"mem_fraction_static": 0.5, "log_level": "info"}
    with pytest.raises(ConfigError, match="'port'"):
        with_overrides(fleet(), {"--port": 1})


def test_the_embedded_engine_takes_its_one_argument_and_refuses_others_by_name() -> None:
    spec = FleetSpec(max_running_requests=3, rollout_engine_args={"mem_fraction_static": 0.7})
    assert resolve(spec) == {"max_running_requests": 3}
    assert resolve(with_overrides(spec, {"max-running-requests": 5})) == {"max_running_requests": 5}
    with pytest.raises(UnknownKey, match="'max_runing_requests' .* did you mean 'max_running_requests'"):
        with_overrides(spec, {"max_runing_requests": 5})


@pytest.mark.parametrize(("source", "spec"), [("engine_args", {}), ("rollout_engine_args", {"mem_fraction_statik": 0.7})])
def test_an_argument_that_the_engine_does_not_have_is_refused_with_the_nearest(source: str, spec: dict[str, Any]) -> None:
    override: dict[str, Any] = {} if spec else {"mem_fraction_statik": 0.7}
    with pytest.raises(UnknownKey, match=f"in {source} of fleet eval.*did you mean 'mem_fraction_static'"):
        settle(fleet(spec, **override), OPTIONS)
    assert "mem_fraction_statik" not in settle(fleet(spec, mem_fraction_statik=None), OPTIONS)


def test_what_is_derived_is_left_out_where_the_engine_does_not_know_it() -> None:
    assert settle(fleet({"tp_size": 8}), OPTIONS) == {"ep_size": 1, "pp_size": 1}


def test_the_command_line_speaks_the_engines_language() -> None:
    settled = {
        "cuda_graph_bs_decode": [1, 2],
        "disable_radix_cache": True,
        "enable_tf32_matmul": False,
        "fp8_gemm_runner_backend": "triton",
        "preferred_sampling_params": {"top_k": 4},
        "prefill_buckets": [1, 2],
        "mem_fraction_static": None,
        "ep_size": [],
    }
    assert render(settled, OPTIONS) == [
        *("--cuda-graph-bs-decode", "1", "2"),
        "--disable-radix-cache",
        "--no-enable-tf32-matmul",
        *("--fp8-gemm-backend", "triton"),
        *("--preferred-sampling-params", '{"top_k": 4}'),
        *("--prefill-buckets", "[1, 2]"),
    ]


def test_without_the_engines_parser_names_are_taken_at_their_word() -> None:
    line = render({"disable_radix_cache": True, "sleep_on_idle": False, "cuda_graph_bs": [1, 2], "page_size": 16}, None)
    assert line == ["--cuda-graph-bs", "1", "2", "--disable-radix-cache", "--page-size", "16"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_gpus": 8, "gpus_per_engine": 3}, "num_gpus 8 is not a multiple of gpus_per_engine 3"),
        ({"num_gpus": 8}, "num_gpus 8 is not a multiple of gpus_per_engine 0"),
        ({"gpus_per_engine": 2}, "num_gpus 0 is not a multiple of gpus_per_engine 2"),
        ({"num_gpus": 8, "gpus_per_engine": 2, "num_engines": 3}, "make 4 engines, not 3"),
        ({"num_gpus": 8, "gpus_per_engine": 2, "engine": "embedded"}, "the embedded engine has no use for 8 GPUs"),
    ],
)
def test_gpus_that_cannot_be_shared_out_are_refused_with_numbers(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FleetSpec(**{"engine": "sglang", **changes})


def test_the_number_of_engines_follows_from_the_gpus() -> None:
    spec = FleetSpec(engine="sglang", num_gpus=8, gpus_per_engine=2)
    assert spec.num_engines == 4
    assert FleetSpec.model_validate_json(spec.model_dump_json()) == spec
