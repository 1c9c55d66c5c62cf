"""How long a checkpoint of 1,000 tensors is validated on a local disk, beside reading its headers alone.

    python -m benchmarks.validation

Imports are timed apart: a process pays for them once. Trust the ratios; seconds are this machine's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from infra.validation.examination import examine
from infra.validation.layout import read_contents
from infra.validation.readers import LocalFolder
from trainer_integration.tiny_trainer.model import build_tokenizer

Result = TypeVar("Result")
LAYERS, HIDDEN, ROUNDS = 91, 256, 5  # 11 tensors a layer, and three more


def main() -> None:
    started = time.perf_counter()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

    imports = time.perf_counter() - started
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype="bfloat16",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="50MB")
        build_tokenizer().save_pretrained(folder)
        first, verdict = _timed(lambda: examine(LocalFolder(folder)))
        if verdict.faults:
            raise SystemExit(f"the checkpoint of the benchmark is not valid: {verdict.faults}")
        whole = min(_timed(lambda: examine(LocalFolder(folder)))[0] for _ in range(ROUNDS))
        headers = min(_timed(lambda: read_contents(LocalFolder(folder)))[0] for _ in range(ROUNDS))
    print(f"{AutoTokenizer.__name__} and the rest imported in {imports:.2f} s, once a process")
    print(f"{verdict.n_tensors} tensors, {len(verdict.files)} files, {verdict.n_bytes / 2**20:.0f} MiB")
    print(f"headers alone      {headers:.3f} s")
    print(f"whole validation   {whole:.3f} s (the first in its process {first:.3f} s), {whole / headers:.1f} times the headers")


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    main()
