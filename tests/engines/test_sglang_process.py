"""SGLang as a process of its own: it keeps its key secret, dies with its host and of a bad checkpoint, and says its options."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import psutil
import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file

from infra.engines.arguments import OWNED, REPLAY, SIZE_ALIASES, SIZES
from infra.engines.options import LAUNCHER, ask, interpreter, settle
from infra.errors import ConfigError, EngineDead, FleetUnhealthy, UnknownKey
from infra.fleet.engine_host import EngineHost
from infra.model import EngineRef, EvalPoint, FleetLease, ProofLevel, SnapshotRef
from infra.pinning import pin
from infra.reproduction.algorithms import on_gpu
from infra.snapshot import describe, validate
from tests.engines.launching import RunningEngine, wait_until
from tests.sglang.launching import KEY, sglang_engine, sglang_fleet
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
WEIGHTS = "model.safetensors"


def snapshot_of(folder: Path) -> SnapshotRef:
    point = EvalPoint(run="real", step=10)
    return SnapshotRef(point=point, location=folder.as_uri(), manifest=describe(folder, validate(folder), point), owned=False)


def lease_of(engine: RunningEngine, folder: Path) -> FleetLease:
    ref = EngineRef(name="engine-0", base_url=engine.base_url, pid=1, checkpoint_path=str(folder))
    return FleetLease(fleet="eval", epoch=1, holder="test", ttl_s=60.0, engines=(ref,), api_key=KEY)


def truncate(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def reshape(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "model.norm.weight": torch.ones(7)}, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.mark.parametrize("spoil", [truncate, reshape])
async def test_a_spoiled_checkpoint_kills_the_server_which_is_a_dead_engine_to_us(
    first: Path, second: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    folder = copytree(second, tmp_path / "spoiled")
    snapshot = snapshot_of(folder)
    spoil(folder)
    with sglang_engine(first) as engine:
        with pytest.raises(EngineDead):
            await pin(lease_of(engine, folder), snapshot)
        assert engine.process is not None
        assert engine.process.wait(timeout=60) != 0


async def test_an_engine_of_two_tensor_parallel_ranks_is_proved_by_content(tmp_path: Path) -> None:
    """Wide enough that SGLang does not pad a rank's part of the MLP, as it does on a CPU below multiples of 32."""
    for seed in (1, 2):
        build_model(seed, hidden=64, layers=1).save_pretrained(tmp_path / str(seed))
        build_tokenizer().save_pretrained(tmp_path / str(seed))
    with sglang_engine(tmp_path / "1", "--tp-size", "2", SGLANG_CPU_OMP_THREADS_BIND="0|1") as engine:
        [proof] = (await pin(lease_of(engine, tmp_path / "2"), snapshot_of(tmp_path / "2"))).proofs
    assert (proof.level, proof.tensors, proof.tensors_proved) == (ProofLevel.CONTENT, 20, 20)


ON_GPU = """
import json, random, sys
import pinpoint_launch, torch  # the first makes this environment's packages importable on a CPU
from sglang.kernels.ops.memory.gpu_tensor_hash import gpu_tensor_hash
class OnGpu(torch.Tensor):
    is_cuda = True
def checksum(n):
    data = torch.frombuffer(bytearray(random.Random(n).randbytes(n)), dtype=torch.uint8)
    return f"{gpu_tensor_hash(data.as_subclass(OnGpu)):016x}"
print(json.dumps({n: checksum(n) for n in json.loads(sys.argv[3])}))
"""


def test_our_checksum_of_a_gpu_is_that_of_sglangs_own_kernel_run_by_tritons_interpreter() -> None:
    sizes = [1, 6, 4 * 8192, 150_001]
    command = [*interpreter(sglang_fleet()), "-c", ON_GPU, "--device", "cpu", json.dumps(sizes)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=LAUNCHER.parent, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {str(n): on_gpu(random.Random(n).randbytes(n)) for n in sizes}


HOST = """
import sys, time
from infra.fleet.engine_host import EngineHost
from infra.model import FleetSpec, SnapshotRef
from pydantic import TypeAdapter
spec, snapshot, key = FleetSpec.model_validate_json(sys.argv[1]), sys.argv[2], sys.stdin.readline().strip()
host = EngineHost(name="eval-0", spec=spec, api_key=key)
ref = host.ensure(TypeAdapter(SnapshotRef).validate_json(snapshot), spec.boot_timeout_s)
print(ref.pid, ref.base_url, ref.configuration, flush=True)
time.sleep(600)
"""


def test_an_engine_keeps_its_key_to_itself_and_none_of_its_processes_outlives_its_host(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINPOINT_STAGING_DIR", str(tmp_path))
    snapshot = TypeAdapter(SnapshotRef).dump_json(snapshot_of(first)).decode()
    command = [sys.executable, "-c", HOST, sglang_fleet().model_dump_json(), snapshot]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        host.stdin.write(f"{KEY}\n")
        host.stdin.flush()
        pid, base_url, configuration = host.stdout.readline().split()
        server = psutil.Process(int(pid))
        processes = [server, *server.children(recursive=True)]
        assert len(processes) >= 3
        assert not [process for process in processes if KEY in " ".join(process.cmdline())]
        assert (RunningEngine(base_url).get("/model_info").status_code, len(configuration)) == (401, 32)
        assert RunningEngine(base_url, api_key=KEY).version() == "unpinned"
        host.send_signal(signal.SIGKILL)
        host.wait()
    wait_until(lambda: not any(process.is_running() and process.status() != "zombie" for process in processes), timeout_s=30)


def test_the_engines_parser_is_asked_and_knows_every_argument_that_rules_speak_of() -> None:
    options = ask(sglang_fleet())
    assert options is not None
    spelt = {spelling.lstrip("-").replace("-", "_") for known in options.values() for spelling in known.options}
    assert {*OWNED, *SIZES, *SIZE_ALIASES} <= spelt | options.keys()
    assert {name for name in options if name.startswith("enable_return_")} == set(REPLAY)
    assert settle(sglang_fleet(), options)["max_total_tokens"] == 32768
    with pytest.raises(UnknownKey, match="'max_total_token' .* did you mean 'max_total_tokens'"):
        settle(sglang_fleet(engine_args={"max_total_token": 1}), options)


def test_an_interpreter_without_sglang_is_refused_and_one_on_another_machine_is_not_asked() -> None:
    with pytest.raises(ConfigError, match="can't run SGLang, see engine_python"):
        ask(sglang_fleet(engine_python=sys.executable))
    assert ask(sglang_fleet(engine_python="/on/another/node/bin/python")) is None


def test_a_server_that_does_not_come_up_is_unhealthy_with_its_last_words(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINPOINT_STAGING_DIR", str(tmp_path))
    host = EngineHost(name="eval-0", spec=sglang_fleet(engine_args={"max_total_tokenz": 1}), api_key=KEY)
    with pytest.raises(FleetUnhealthy, match="ended with code 2: .*max-total-tokenz"):
        host.ensure(snapshot_of(first), 120)
