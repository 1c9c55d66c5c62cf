"""A trainer pays for nothing: importing its end of Pinpoint loads neither Prefect nor Ray, torch, transformers or SGLang."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import trainer_integration.adapters
import trainer_integration.megatron
import trainer_integration.sharded

HEAVY = {
    "prefect",
    "ray",
    "torch",
    "transformers",
    "sglang",
    "scipy",
    "reasoning_gym",
    "s3fs",
    "megatron",
    "peft",
    "trl",
    "datasets",
    "tasks",
    "flows",
}
LIGHT = (trainer_integration, trainer_integration.sharded, trainer_integration.megatron, trainer_integration.adapters)
MODULES = [f"{package.__name__}.{module.name}" for package in LIGHT for module in pkgutil.iter_modules(package.__path__)]
LOADED = "import importlib, json, sys; [importlib.import_module(m) for m in sys.argv[1:]]; print(json.dumps(list(sys.modules)))"


def loaded_by(*modules: str) -> set[str]:
    fresh = subprocess.run([sys.executable, "-c", LOADED, *modules], capture_output=True, text=True, check=True)
    return {name for name in json.loads(fresh.stdout) if "." not in name or name.startswith("infra.")}


def test_importing_all_of_trainer_integration_loads_nothing_heavy() -> None:
    assert len(MODULES) >= 20
    assert loaded_by(*MODULES) & HEAVY == set()


def test_the_vocabulary_loads_only_the_errors_of_ours() -> None:
    packages = {"infra", "trainer_integration", "tasks", "flows"}
    ours = {name for name in loaded_by("infra.model") if name.split(".")[0] in packages}
    assert {name for name in ours if not name.startswith("infra.model")} == {"infra", "infra.errors"}


def test_the_core_loads_neither_prefect_nor_ray_nor_torch() -> None:
    core = ("pinning", "running", "snapshot", "records", "grading", "statistics", "datasets", "presentation", "processes")
    loaded = loaded_by(*(f"infra.{name}" for name in core))
    assert loaded & {"prefect", "ray", "torch", "transformers", "sglang"} == set()
