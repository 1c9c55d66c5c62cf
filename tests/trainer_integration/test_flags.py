"""Evaluation is asked for by the flags that Miles users know; what can't be meant is refused, naming the remedy."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from infra.config import Settings, load_settings
from infra.engines.arguments import resolve
from infra.errors import ConfigError, UnknownKey
from infra.model import BlackBoxSpec
from tests.infra.examples import jsonl
from tests.services.ports import free_port
from trainer_integration.dispatcher import EvalDispatcher
from trainer_integration.flags import WORDS, EvalOptions, add_eval_arguments, parse_arguments

TRAINERS = Path(__file__).parents[2] / "docs" / "trainers.md"
EVALUATIONS = "tests.fakes.black_boxes"
FLEET = "--eval-interval 20 --eval-num-gpus 4 --eval-hf-dir /dev/shm/x --eval-prompt-data sums sums.jsonl --rm-type exact"
REUSE = "--eval-interval 20 --eval-num-gpus 4 --eval-prompt-data sums sums.jsonl --rm-type exact --save-hf /s/{rollout_id}"
BLACK_BOX = f"--eval-interval 20 --eval-hf-dir /dev/shm/x --eval-function-path {EVALUATIONS}."

REFUSED = {
    "a fleet and a black box": (f"{FLEET} --eval-function-path {EVALUATIONS}.Well", "exclude each other"),
    "a fleet without an interval": ("--eval-num-gpus 4 --eval-hf-dir /x --eval-prompt-data a b", "needs --eval-interval"),
    "a black box without an interval": (f"--eval-hf-dir /x --eval-function-path {EVALUATIONS}.Well", "needs --eval-interval"),
    "snapshots without a source": ("--eval-interval 20 --eval-num-gpus 4 --eval-prompt-data a b", "they have no source"),
    "reuse of checkpoints without their interval": (REUSE, "no multiple of --save-interval None"),
    "reuse of checkpoints that not every due step has": (f"{REUSE} --save-interval 15", "no multiple of --save-interval 15"),
    "a pattern of checkpoints without the step": (
        f"{REUSE[: -len('{rollout_id}')]}latest --save-interval 10",
        "must hold {rollout_id}",
    ),
    "a pattern that can't be filled in, or is the same for several steps": (
        f"{REUSE.replace('{rollout_id}', '{rollout_id:q}')} --save-interval 10",
        "can't be filled in with a step",
    ),
    "GPUs that can't be shared out": (f"{FLEET} --eval-num-gpus-per-engine 3", "no multiple of --eval-num-gpus-per-engine 3"),
    "fewer GPUs than none": (FLEET.replace("--eval-num-gpus 4", "--eval-num-gpus -4"), "greater than or equal to 0 (got -4)"),
    "a fleet with nothing to evaluate on": ("--eval-interval 20 --eval-num-gpus 4 --eval-hf-dir /x", "--eval-prompt-data or"),
    "an overflow policy that there is not": (f"{FLEET} --eval-overflow-policy drop", "'backpressure' or 'skip' (got 'drop')"),
    "data that are no pairs": (f"{FLEET.replace('sums.jsonl', '')}", "odd number of words: sums"),
    "data named twice": (f"{FLEET} --eval-config e.yaml", "give one of them"),
    "a function that can't be imported": (f"{BLACK_BOX}Missing", f"{EVALUATIONS}.Missing can't be imported: AttributeError"),
    "a module that can't be imported": (BLACK_BOX.replace(EVALUATIONS, "no.such"), "can't be imported: ModuleNotFoundError"),
    "a function that is no CheckpointEvalFn": (
        f"{BLACK_BOX}a_function",
        "a_function is no CheckpointEvalFn: it must be a class",
    ),
    "a class that is half a CheckpointEvalFn": (f"{BLACK_BOX}Unfinished", "and lacks evaluate_checkpoint"),
    "tensor parallelism as an engine argument": (f"{FLEET} --eval-sglang-tp-size 2", "--eval-num-gpus-per-engine is the size"),
    "an engine argument that Pinpoint decides": (
        f"{FLEET} --eval-sglang-port 1",
        "--eval-sglang-port can't be set: the engine",
    ),
    "engine arguments without engines": ("--eval-interval 20 --eval-sglang-dtype half", "set --eval-num-gpus, or leave it out"),
    "colocated training and snapshots": (f"{FLEET} --colocate", "--colocate shares its GPUs"),
}


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "sums.jsonl", '{"input": "1+1=", "label": "2"}')
    monkeypatch.delenv("PINPOINT_FLEET", raising=False)


def options(words: str, **others: Any) -> EvalOptions:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--colocate", action="store_true")  # the trainer's own
    add_eval_arguments(parser)
    args = parse_arguments(parser, words.split())
    vars(args).update(others)
    return EvalOptions.from_namespace(args)


@pytest.mark.parametrize("what", REFUSED)
def test_what_can_not_be_meant_is_refused_with_its_remedy(what: str) -> None:
    words, said = REFUSED[what]
    with pytest.raises(ConfigError, match=re.escape(said)):
        options(words)


def test_the_page_lists_every_flag_and_every_refused_combination() -> None:
    page = TRAINERS.read_text()
    for name in (*WORDS, "eval_settings", "eval_sglang_*"):
        assert f"| `--{name.replace('_', '-')}` |" in page
    for what in REFUSED:
        assert f"| {what} |" in page, what


def test_nothing_is_evaluated_unless_it_is_asked_for() -> None:
    nothing = options("")
    assert (nothing.posture, nothing.eval_uses_snapshots, nothing.baseline) == ("live", False, False)
    with pytest.raises(ConfigError, match="set --eval-interval"):
        nothing.dispatch()
    live = options("--eval-interval 5 --eval-run r")
    assert live.posture == "live"
    with pytest.raises(ConfigError, match="the posture is live, which measures no snapshots"):
        live.dispatch()


@pytest.mark.parametrize(
    ("words", "posture"),
    [
        ("--eval-interval 20", "live"),
        ("--eval-interval 20 --eval-num-gpus 0 --eval-hf-dir /x", "live"),
        (FLEET, "fleet"),
        (f"{REUSE} --save-interval 10", "fleet"),
        (f"{BLACK_BOX}Well", "black_box"),
        (f"{BLACK_BOX.removesuffix('.')}:Well", "black_box"),
    ],
)
def test_the_posture_follows_from_the_options_and_so_does_whether_snapshots_are_used(words: str, posture: str) -> None:
    found = options(words)
    assert (found.posture, found.eval_uses_snapshots) == (posture, posture != "live")


def test_a_rollout_function_that_the_trainers_parser_put_there_is_no_black_box() -> None:
    assert options(FLEET, eval_function_path="m.generate", rollout_function_path="m.generate").posture == "fleet"


def test_options_become_what_a_dispatcher_needs() -> None:
    made = options(f"{FLEET} --eval-max-in-flight 3 --eval-overflow-policy skip --eval-run r --hf-checkpoint /base")
    dispatch = made.dispatch(start_step=7)
    assert (dispatch.run, dispatch.every, dispatch.start_step) == ("r", 20, 7)
    assert (dispatch.max_in_flight, dispatch.overflow_policy, dispatch.keep_snapshots) == (3, "skip", 0)
    assert (dispatch.baseline_checkpoint, dispatch.exports) == ("/base", True)
    settings = made.settings(home=Path("h"))
    assert settings.staging_dir == Path("/dev/shm/x")
    assert (settings.fleet.engine, settings.fleet.num_engines, settings.fleet.gpus_per_engine) == ("sglang", 4, 1)


def test_what_training_starts_from_is_of_no_matter_without_a_baseline() -> None:
    made = options(f"{FLEET} --eval-run r --hf-checkpoint owner/name", skip_eval_before_train=True)
    assert made.dispatch().baseline_checkpoint is None


def test_a_black_box_becomes_what_the_flow_is_told_and_needs_no_data(tmp_path: Path) -> None:
    made = options(f"{BLACK_BOX}Well --eval-run r", eval_function_settings={"notes": str(tmp_path)})
    assert made.dispatch().black_box == BlackBoxSpec(function=f"{EVALUATIONS}.Well", settings={"notes": str(tmp_path)})
    assert made.dispatch().suite.datasets == ()


def test_without_a_staging_folder_saved_checkpoints_are_used() -> None:
    made = options(f"{REUSE} --save-interval 10 --eval-run r --eval-keep-snapshots 2")
    dispatch = made.dispatch()
    assert made.reuses_checkpoints
    assert (dispatch.saved_at(40), dispatch.keep_snapshots) == (Path("/s/40"), 0)
    exported = options(f"{REUSE} --save-interval 10 --eval-run r --eval-hf-dir /x").dispatch()
    assert (exported.save_hf, exported.save_interval) == (None, None)


@pytest.mark.parametrize(
    ("others", "name"),
    [({"eval_run": "a", "save": "/x/b"}, "a"), ({"wandb_group": "c", "save": "/x/b"}, "c"), ({"save": "/x/b"}, "b")],
)
def test_the_run_is_named_as_the_trainer_names_it(others: dict[str, str], name: str) -> None:
    assert options(FLEET, **others).dispatch().run == name


@pytest.mark.parametrize("where", ["file", "variable"])
def test_a_name_that_somebody_says_beats_the_one_that_follows_from_the_trainers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "o.yaml").write_text("eval_run: said" if where == "file" else "{}")
    if where == "variable":
        monkeypatch.setenv("PINPOINT_EVAL_RUN", "said")
    assert options(f"{FLEET} --eval-settings o.yaml", wandb_group="derived", save="/x/derived").dispatch().run == "said"


def test_no_secret_of_the_rollout_engines_is_in_what_prefect_is_told(tmp_path: Path) -> None:
    names = ("api_key", "admin_api_key", "ssl_keyfile_password", "ssl_keyfile")
    secrets = {f"sglang_{name}": f"SECRET-{name}" for name in names}
    made = options(FLEET, sglang_dtype="half", rollout_num_gpus_per_engine=2, wandb_group="run", **secrets)
    away: dict[str, Any] = {"home": tmp_path / "home", "prefect_api_url": f"http://127.0.0.1:{free_port()}/api"}
    dispatcher = EvalDispatcher(made.dispatch(), made.settings(**away), lambda folder: None)
    dispatcher.on_step(20)
    dispatcher.close()
    (delivery,) = (tmp_path / "home" / "outbox").glob("*.json")
    told = delivery.read_text()
    assert '"rollout_engine_args":{"dtype":"half","tp_size":2}' in told
    assert "SECRET" not in told


def test_a_run_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="set --eval-run, or PINPOINT_EVAL_RUN"):
        options(FLEET).dispatch()


def test_sampling_that_is_not_set_is_the_rollouts() -> None:
    rollout = {"rollout_temperature": 0.8, "rollout_top_p": 0.9, "rollout_top_k": 50, "rollout_max_response_len": 99}
    (dataset,) = options(f"{FLEET} --eval-temperature 0.0 --n-samples-per-eval-prompt 4", **rollout).suite().datasets
    sampling = dataset.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens) == (0.0, 0.9, 50, 99)
    assert (dataset.samples_per_prompt, dataset.grader.name) == (4, "exact")


def test_engine_arguments_of_any_name_are_taken_and_typed_and_the_others_inherited() -> None:
    made = options(
        f"{FLEET} --eval-sglang-mem-fraction-static 0.85 --no-eval-sglang-enable-mixed-chunk --eval-sglang-enable-metrics "
        "--eval-sglang-lora-paths a b --eval-sglang-random-seed=-1 --eval-num-gpus-per-engine 2",
        sglang_dtype="bfloat16",
        sglang_dp_size=2,
        sglang_ep_size=None,
        sglang_router_ip="10.0.0.1",
        sglang_server_concurrency=512,
        sglang_mem_fraction_static=0.7,
        rollout_num_gpus_per_engine=4,
    )
    settled = resolve(made.settings().fleet)
    assert made.eval_sglang == {
        "mem_fraction_static": 0.85,
        "enable_mixed_chunk": False,
        "enable_metrics": True,
        "lora_paths": ["a", "b"],
        "random_seed": -1,
    }
    assert settled.items() >= {**made.eval_sglang, "dtype": "bfloat16"}.items()
    assert settled["dp_size"] == 1  # it shares out 4 ranks of the rollout engines, and an engine here has 2
    assert not {"router_ip", "server_concurrency", "tp_size"} & settled.keys()


def test_values_of_an_engine_argument_end_at_the_next_flag() -> None:
    made = options(f"--eval-sglang-dtype half {FLEET}")
    assert (made.eval_sglang, made.eval_interval) == ({"dtype": "half"}, 20)


def test_a_namespace_of_the_trainers_own_parser_is_read_as_it_is() -> None:
    args = argparse.Namespace(
        eval_interval=20,
        eval_num_gpus=2,
        eval_num_gpus_per_engine=1,
        eval_hf_dir="/dev/shm/x",
        eval_prompt_data=["sums", "sums.jsonl"],
        eval_keep_snapshots=2,
        rm_type="exact",
        input_key="input",
        label_key="label",
        eval_sglang_dtype="half",
        eval_sglang_enable_metrics=None,
        sglang_dtype="bfloat16",
        save="/runs/seven",
        lr=1e-6,
    )
    made = EvalOptions.from_namespace(args)
    assert made.eval_sglang == {"dtype": "half"}
    assert (made.dispatch().run, made.dispatch().keep_snapshots) == ("seven", 2)
    assert made.suite().datasets[0].prompt_key == "input"


def test_arguments_beat_variables_which_beat_the_file_which_beats_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "o.yaml").write_text("{eval_interval: 1, eval_max_in_flight: 5, save_interval: 7, eval_temperature: 0.5}")
    monkeypatch.setenv("PINPOINT_EVAL_INTERVAL", "2")
    monkeypatch.setenv("PINPOINT_EVAL_MAX_IN_FLIGHT", "6")
    monkeypatch.setenv("PINPOINT_EVAL_RUN", "r")
    made = options("--eval-settings o.yaml --eval-interval 3")
    assert (made.eval_interval, made.eval_max_in_flight, made.save_interval, made.eval_temperature) == (3, 6, 7, 0.5)
    assert (made.eval_run, made.eval_num_gpus_per_engine) == ("r", 1)
    assert EvalOptions.load(tmp_path / "o.yaml", eval_interval=4).eval_interval == 4
    assert load_settings(home=tmp_path).home == tmp_path  # its variables are none of the others' business


@pytest.mark.parametrize("where", ["file", "variable", "argument"])
def test_an_unknown_option_is_refused_with_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "o.yaml").write_text("eval_intervall: 1" if where == "file" else "{}")
    if where == "variable":
        monkeypatch.setenv("PINPOINT_EVAL_INTERVALL", "1")
    with pytest.raises(UnknownKey, match="did you mean '(eval_interval|PINPOINT_EVAL_INTERVAL)'"):
        EvalOptions.load(tmp_path / "o.yaml", **({"eval_intervall": 1} if where == "argument" else {}))


def test_an_unknown_flag_is_refused_by_the_parser() -> None:
    with pytest.raises((SystemExit, argparse.ArgumentError)):
        options("--eval-intervall 3")


def test_flags_that_the_parser_has_already_are_left_to_it() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-interval", type=int, default=5)
    add_eval_arguments(parser)
    assert EvalOptions.from_namespace(parse_arguments(parser, [])).save_interval == 5


def test_the_settings_of_the_machine_are_kept_but_for_what_the_options_say(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "{home: /h, fleet: {name: mine, engine: sglang, lease_timeout_s: 5, engine_args: {dtype: half}}}"
    )
    made = options(f"{FLEET} --eval-sglang-kv-cache-dtype fp8_e5m2").settings(tmp_path / "s.yaml")
    assert isinstance(made, Settings)
    assert (made.fleet.name, made.fleet.lease_timeout_s, made.fleet.num_gpus) == ("mine", 5, 4)
    assert made.fleet.engine_args == {"dtype": "half", "kv_cache_dtype": "fp8_e5m2"}
