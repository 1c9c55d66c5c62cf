"""Hugging Face models as ranks hold them, and what runs on each rank to stage them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import transformers

from infra.errors import PinpointError
from tests.infra.models import SIZES
from tests.services.ranks import listing
from trainer_integration.export import HuggingFaceExporter
from trainer_integration.sharded.converter import ConverterExporter
from trainer_integration.sharded.lending import SOCKET
from trainer_integration.sharded.lora import AdapterExporter, MergedLoraExporter
from trainer_integration.sharded.metadata import ModelFiles
from trainer_integration.sharded.modules import ModuleExporter
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.tiny_trainer.model import build_tokenizer

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1, "mlp_only_layers": []}
SHARD_BYTES = 30_000


def model_of(family: str, *, seed: int = 0, **config: Any) -> Any:
    """The same on every rank."""
    changes = {**SIZES, "dtype": "float32", **(MOE if family.endswith("Moe") else {}), **config}
    torch.manual_seed(seed)
    return getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**changes))


def files_of(model: Any) -> ModelFiles:
    return ModelFiles.of(model.config, build_tokenizer(), model.generation_config)


def with_adapter(model: Any, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = options.pop("target_modules", ["q_proj", "v_proj", "down_proj"])
    found = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM", **options))
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if "lora_B" in name:  # zero at first, which would change nothing
                parameter.normal_(std=0.2)
    return found


def fsdp(model: Any, mesh_shape: tuple[int, ...] | None = None) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names) if mesh_shape else None
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def staged_on_ranks(rank: int, root: str) -> dict[str, Any]:
    """Each kind of model is staged whole by rank 0 through transformers, and by all ranks through ours, to ROOT/KIND/...."""
    found: dict[str, Any] = {}
    kinds: dict[str, tuple[Any, Any]] = {
        "replicas": (lambda: model_of("Qwen3"), lambda model: model),
        "DDP": (lambda: model_of("Llama"), torch.nn.parallel.DistributedDataParallel),
        "FSDP2": (lambda: model_of("Qwen3", hidden_size=36, tie_word_embeddings=True), fsdp),
        "FSDP2 of experts": (lambda: model_of("Qwen3Moe"), fsdp),
        "HSDP": (lambda: model_of("Qwen3"), lambda model: fsdp(model, (2, 2))),
    }
    for kind, (build, wrap) in kinds.items():
        folder = Path(root) / kind
        if rank == 0:
            build().save_pretrained(folder / "theirs")
        model = build()
        files = files_of(model)
        exporter = ModuleExporter(wrap(model), files, shard_bytes=SHARD_BYTES)
        exporter(folder / "ours")
        found[kind] = len(exporter.plan.writes[rank]) if exporter.plan else 0
    _other_nodes(rank, Path(root) / "FSDP2 on two nodes")
    return found


def _other_nodes(rank: int, folder: Path) -> None:
    model = model_of("Qwen3")
    if rank == 0:
        model.save_pretrained(folder / "theirs")
    files, ranks = files_of(model), Ranks.of_job(node=f"node {rank // 2}")
    ModuleExporter(fsdp(model), files, ranks=ranks, shard_bytes=SHARD_BYTES)(folder / "ours")


def adapters_on_ranks(rank: int, root: str) -> str:
    """The error of an export that fails on rank 1 before sharded parts are gathered."""
    plain = with_adapter(model_of("Qwen3", tie_word_embeddings=True))
    MergedLoraExporter(plain, files_of(plain.get_base_model()), shard_bytes=SHARD_BYTES)(Path(root) / "merged")
    AdapterExporter(plain, base_digest="d1")(Path(root) / "adapter")
    sharded = with_adapter(model_of("Qwen3", tie_word_embeddings=True))
    inner = sharded.get_base_model()
    fsdp(inner)
    exporter = AdapterExporter(sharded, base_digest="d1")
    exporter(Path(root) / "adapter of a sharded model")
    unlucky = mock.patch("peft.utils.get_peft_model_state_dict", side_effect=MemoryError("no room"))
    with unlucky if rank == 1 else nullcontext():
        try:
            exporter(Path(root) / "adapter that fails")
        except PinpointError as error:
            return str(error)
    return ""


class Converter:
    """Yields a model's tensors on every rank by a collective each, as a weight sync does, and can be made to get it wrong."""

    def __init__(self, model: Any) -> None:
        self.model, self.wrong = model, ""

    def __call__(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self.model.state_dict().items():
            value = tensor.clone()
            dist.broadcast(value, 0)
            if self.wrong == "lost" and name.endswith("layers.1.mlp.up_proj.weight"):
                continue
            yield (f"{name}s" if self.wrong == "misnamed" and "up_proj" in name else name), value


def converted_on_ranks(rank: int, root: str) -> dict[str, tuple[str, float, list[str]]]:
    model = model_of("Qwen3")
    converter, found = Converter(model), dict[str, tuple[str, float, list[str]]]()
    exporter = ConverterExporter(converter, files_of(model), dtype="float32", shard_bytes=SHARD_BYTES)
    exporter.prepare()
    if rank == 0:
        model.save_pretrained(Path(root) / "theirs")
    for wrong in ("lost", "misnamed", "ours"):
        converter.wrong, folder = wrong, Path(root) / wrong
        dist.barrier()
        started, text = time.perf_counter(), ""
        try:
            exporter(folder)
        except PinpointError as error:
            text = str(error)
        found[wrong] = text, time.perf_counter() - started, listing(folder)
    return found


def whole_by_itself(folder: Path) -> None:
    HuggingFaceExporter(model_of("Qwen3Moe"), build_tokenizer())(folder)


def again_on_ranks(rank: int, root: str) -> dict[str, Any]:
    """Exports of weights that change, into memory that is used again.

    The one of step 2 stays where it was staged; of that of step 4, one file is still being read when it is freed.
    """
    model, spare, inodes = model_of("Qwen3"), Path(root) / "spare", list[list[int]]()
    exporter, late = ModuleExporter(fsdp(model), files_of(model), shard_bytes=SHARD_BYTES).reuse_memory(spare), None
    for step in range(7):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step + 1)
        folder = Path(root) / "staged" / f"{step}"
        exporter(folder)
        dist.barrier()
        inodes.append([file.stat().st_ino for file in sorted(folder.glob("*.safetensors"))])
        dist.barrier()
        if rank == 0:
            shutil.copytree(folder, Path(root) / "copies" / f"{step}")
            late = min(folder.glob("*.safetensors")).open("rb") if step == 4 else late
            if step != 2:
                shutil.rmtree(folder)
        dist.barrier()
    kept = [name for name in listing(spare) if name != SOCKET]
    mapped = sum(file.mapped is not None for _, file in exporter._spares.kept) if exporter._spares else 0
    read = late.read() if late is not None else b""
    del exporter
    dist.barrier()
    return {"inodes": inodes, "kept": kept, "left": listing(spare), "mapped": mapped, "late": read}


def cleaned_up_on_ranks(rank: int, root: str) -> dict[str, Any]:
    """Exports into memory that is used again, all of which is deleted, with its lock, before step 2; each is freed in time."""
    model, spare, inodes = model_of("Qwen3"), Path(root) / "spare", list[list[int]]()
    exporter = ModuleExporter(fsdp(model), files_of(model), shard_bytes=SHARD_BYTES).reuse_memory(spare)
    for step in range(5):
        if rank == 0 and step == 2:
            shutil.rmtree(spare)
            spare.with_name("spare.lock").unlink()
        dist.barrier()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step + 1)
        folder = Path(root) / "staged" / f"{step}"
        exporter(folder)
        dist.barrier()
        if rank == 0:
            inodes.append([file.stat().st_ino for file in sorted(folder.glob("*.safetensors"))])
            shutil.copytree(folder, Path(root) / "copies" / f"{step}")
            shutil.rmtree(folder)
        dist.barrier()
    borrowed = sum(file.borrowed for _, file in exporter._spares.kept) if exporter._spares else 0
    return {"inodes": inodes, "borrowed": borrowed}
