"""How each engine is started follows from the fleet alone; its key is in its environment, and on no command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.config import load_settings
from infra.engines.launch import Place, launch
from infra.errors import ConfigError
from infra.model import FleetSpec

PLACE = Place(folder=Path("/snapshot"), address="127.0.0.1", port=31000, api_key="secret", threads=3)
ON_CPU = FleetSpec(engine="sglang", engine_python="/opt/sglang/bin/python", engine_args={"max_total_tokens": 8192})
ON_GPUS = FleetSpec(engine="sglang", num_gpus=8, gpus_per_engine=4)


@pytest.mark.parametrize("spec", [FleetSpec(), ON_CPU, ON_GPUS], ids=["embedded", "on a cpu", "on gpus"])
def test_an_engine_is_told_its_place_by_its_command_and_its_key_by_its_environment(spec: FleetSpec) -> None:
    started = launch(spec, PLACE)
    line = " ".join(started.command)
    assert "--model-path /snapshot --host 127.0.0.1 --port 31000 --weight-version unpinned" in line
    assert "secret" not in line
    assert "secret" in started.environment.values()


def test_sglang_on_a_cpu_runs_in_its_own_environment_with_the_threads_of_its_host() -> None:
    started = launch(ON_CPU, PLACE)
    assert started.command[:4] == ["env", "-u", "PYTHONPATH", "-u"]
    assert "/opt/sglang/bin/python" in started.command
    line = " ".join(started.command)
    assert "--tp-size 1 --device cpu" in line
    assert line.endswith("--max-total-tokens 8192 --sleep-on-idle")
    assert (started.environment["OMP_NUM_THREADS"], started.environment["SGLANG_USE_CPU_ENGINE"]) == ("3", "1")


def test_sglang_on_gpus_gets_nothing_that_is_for_cpus() -> None:
    started = launch(ON_GPUS, PLACE)
    assert "--tp-size 4" in " ".join(started.command)
    assert {"--device", "--sleep-on-idle"}.isdisjoint(started.command)
    assert {"OMP_NUM_THREADS", "SGLANG_USE_CPU_ENGINE", "TORCHDYNAMO_DISABLE"}.isdisjoint(started.environment)


def test_engines_that_differ_in_what_decides_their_weights_have_other_configurations() -> None:
    digests = {
        launch(spec, PLACE).configuration(version, architecture, hardware)
        for spec in (ON_CPU, ON_GPUS, ON_GPUS.model_copy(update={"engine_args": {"quantization": "fp8"}}))
        for version in ("0.5.23", "0.5.24")
        for architecture in ("qwen3", "llama")
        for hardware in ("H200", "B200")
    }
    assert len(digests) == 3 * 2 * 2 * 2


def test_where_an_engine_is_does_not_change_its_configuration() -> None:
    elsewhere = Place(folder=Path("/other"), address="10.0.0.1", port=1, api_key="other", threads=1)
    one, other = launch(ON_CPU, PLACE), launch(ON_CPU, elsewhere)
    assert one.configuration("v", "a", "h") == other.configuration("v", "a", "h")


def test_an_engine_argument_that_is_not_the_users_is_refused_when_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPOINT_FLEET", '{"engine": "sglang", "engine_args": {"port": 1}}')
    with pytest.raises(ConfigError, match="engine argument 'port' is not for engine_args"):
        load_settings()
