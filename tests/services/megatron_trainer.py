"""A Megatron-Core training: `torchrun --nproc-per-node N -m tests.services.megatron_trainer HOME PREFECT_API TENSOR_PARALLEL`.

Each rank leaves what it has to say in HOME/said-RANK.pickle.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch.distributed as dist

from tests.megatron.training import trained


def main(home: Path, api_url: str, tensor_parallel: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (home / f"said-{rank}.pickle").write_bytes(pickle.dumps(trained(rank, str(home), api_url, tensor_parallel)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
