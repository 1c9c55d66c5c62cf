from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from transformers import Qwen3ForCausalLM

from trainer_integration.remote_gate import RemoteGate
from trainer_integration.tiny_trainer.addition import split
from trainer_integration.tiny_trainer.config import RolloutConfig
from trainer_integration.tiny_trainer.model import build_model
from trainer_integration.tiny_trainer.producer import ProducerFailed, RolloutProducer
from trainer_integration.tiny_trainer.sampling import answer_log_probs
from trainer_integration.tiny_trainer.tokens import until_eos

CONFIG = RolloutConfig(prompts=8, samples=4, queue_size=2)
PAIRS = split(0).train


def small_model(seed: int) -> Qwen3ForCausalLM:
    return build_model(seed, hidden=32, layers=2)


@pytest.mark.slow
def test_the_producer_takes_new_weights_never_waits_for_the_trainer_and_stops_at_its_bound() -> None:
    models = [small_model(0), small_model(1)]
    with RolloutProducer(models[0], PAIRS, CONFIG, seed=0) as producer:
        producer.publish(models[0], 0)
        made = [producer.next_rollouts()]
        time.sleep(2.0)  # the trainer is busy; the producer fills its queue, and no more
        producer.publish(models[1], 1)
        made += [producer.next_rollouts() for _ in range(4)]
    assert producer.process.exitcode == 0, "a producer with a full queue ends by itself when it is asked to, and is not killed"
    assert [rollouts.version for rollouts in made] == [0, 0, 0, 1, 1]
    for rollouts in made:
        chosen = until_eos(rollouts.answers)
        recomputed = answer_log_probs(models[rollouts.version], rollouts.questions, rollouts.answers).detach()
        torch.testing.assert_close(rollouts.log_probs[chosen], recomputed[chosen], atol=1e-5, rtol=0)
        other = answer_log_probs(models[1 - rollouts.version], rollouts.questions, rollouts.answers).detach()
        assert (rollouts.log_probs[chosen] - other[chosen]).abs().max() > 1e-2
    assert len({tuple(rollouts.questions.flatten().tolist()) for rollouts in made}) == len(made)


@pytest.mark.slow
def test_an_exception_in_the_producer_is_raised_in_the_trainer_with_its_traceback() -> None:
    model = small_model(0)
    with RolloutProducer(model, PAIRS[:3], CONFIG, seed=0) as producer:  # 8 questions can't be drawn from 3
        producer.publish(model, 0)
        with pytest.raises(ProducerFailed, match="Sample larger than population") as failure:
            producer.next_rollouts()
    assert "in rollouts" in failure.value.child_traceback
    assert failure.value.child_traceback in failure.value.__notes__[0]


@pytest.mark.slow
def test_a_producer_that_was_killed_is_an_error_and_not_a_hang() -> None:
    model = small_model(0)
    with RolloutProducer(model, PAIRS, CONFIG, seed=0) as producer:
        producer.publish(model, 0)
        producer.next_rollouts()
        assert producer.process.pid is not None
        os.kill(producer.process.pid, signal.SIGKILL)
        producer.process.join()
        with pytest.raises(ProducerFailed, match="exit code -9"):
            drain(producer)


def drain(producer: RolloutProducer) -> None:
    """Takes all that can be waiting, and one more."""
    for _ in range(CONFIG.queue_size + 1):
        producer.next_rollouts()


ORPHAN = """
import time
from tests.tiny_trainer.test_producer import CONFIG, PAIRS, RolloutProducer, small_model

if __name__ == "__main__":
    model = small_model(0)
    with RolloutProducer(model, PAIRS, CONFIG, seed=0) as producer:
        producer.publish(model, 0)
        producer.next_rollouts()
        print(producer.process.pid, flush=True)
        time.sleep(600)
"""


@pytest.fixture
def orphaning_parent(tmp_path: os.PathLike[str]) -> Iterator[subprocess.Popen[str]]:
    script = os.path.join(tmp_path, "parent.py")
    with open(script, "w") as file:
        file.write(ORPHAN)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        yield parent
        with suppress(ProcessLookupError):
            parent.kill()


@pytest.mark.slow
def test_the_producer_ends_when_its_parent_is_killed(orphaning_parent: subprocess.Popen[str]) -> None:
    assert orphaning_parent.stdout is not None
    producer = int(orphaning_parent.stdout.readline())
    assert is_running(producer)
    orphaning_parent.kill()
    orphaning_parent.wait()
    deadline = time.monotonic() + 5.0
    while is_running(producer) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(producer)


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie that nobody has reaped yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_the_producer_waits_at_its_gate_and_goes_on_with_the_newest_weights_when_it_opens() -> None:
    models = [small_model(0), small_model(1)]
    ahead = RolloutConfig(prompts=8, samples=4, queue_size=1000)
    with RolloutProducer(models[0], PAIRS, ahead, seed=0) as producer:
        producer.publish(models[0], 0)
        gate = RemoteGate(producer.gate_url())
        producer.next_rollouts()
        with gate.closed(60, settle_s=10) as pause:
            assert pause.unfinished == 0
            passed = gate.status.passed
            producer.publish(models[1], 1)
            versions = [producer.next_rollouts().version for _ in range(passed - 1)]
            time.sleep(0.5)
            assert gate.status.passed == passed
        assert set(versions) == {0}, "what was under way was finished and buffered"
        assert producer.next_rollouts().version == 1
        with gate.closed(60):
            started = time.monotonic()
            producer.stop()
    assert time.monotonic() - started < 10, "a closed gate does not hold up the end"
    assert producer.process.exitcode == 0
