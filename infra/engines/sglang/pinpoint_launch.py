"""`sglang.launch_server` with its key out of the process list and, on a CPU, with what SGLang's own packages lack there.

Run by path with SGLang's interpreter and the server's own arguments. SGLang's children run this module again before they
start, so what it puts in place at its top level is in place there as well. `--list-options` first prints the parser instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

API_KEY_VARIABLE = "SGLANG_ENGINE_API_KEY"  # also in `__init__`, which a module that is run by its path does not have
CPU_SHIMS = str(Path(__file__).parent / "cpu_shims")
NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def on_cpu() -> bool:
    arguments = sys.argv[1:]
    return "--device=cpu" in arguments or ("--device", "cpu") in itertools.pairwise(arguments)


def complete_for_cpu() -> None:
    """With a CPU build of torch, torchvision lacks operators that it declares, and SGLang has no kernels to import."""
    import torch

    if importlib.util.find_spec("sgl_kernel") is None:
        sys.path.append(CPU_SHIMS)
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", NMS)


def serve(arguments: list[str]) -> None:
    """Handed over here, the key is on no command line that `ps` shows."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    key = os.environ.pop(API_KEY_VARIABLE, "")
    load_plugins()
    try:
        run_server(prepare_server_args([*arguments, *(["--api-key", key] if key else [])]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def options() -> dict[str, dict[str, Any]]:
    """The fields that the server's parser sets: how each is said, whether it is a switch, and argparse's `nargs`."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    found: dict[str, dict[str, Any]] = {}
    for action in parser._actions:
        known = found.setdefault(action.dest, {"options": [], "switch": action.nargs == 0, "nargs": action.nargs})
        known["options"] += action.option_strings
    return found


if on_cpu():
    complete_for_cpu()

if __name__ == "__main__":
    if sys.argv[1:2] == ["--list-options"]:
        print(json.dumps(options()))
    else:
        serve(sys.argv[1:])
