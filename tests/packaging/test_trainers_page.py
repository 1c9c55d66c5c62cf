"""What docs/trainers.md tells a user to write can be compiled, and all that it imports is there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from infra.miles_suite import KNOWN

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_compiles_and_what_it_imports_is_there(number: int) -> None:
    tree = compile(BLOCKS[number], str(PAGE), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)


def test_the_keys_of_a_dataset_are_all_listed() -> None:
    (listed,) = re.findall(r"Keys: (.*?)\. Prompts", PAGE.read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(KNOWN)
