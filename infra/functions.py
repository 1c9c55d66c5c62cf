"""What a user names as `package.module:function` is found, or named with what is wrong with it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra.errors import ConfigError


def function_of(name: str, what: str) -> Callable[..., Any]:
    """`what` it is for, as people say it. Raises ConfigError."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{what} {name}: {error}; it must be importable where flows run") from None
    if not callable(found):
        raise ConfigError(f"{what} {name} can't be called: it is a {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def source_of(name: str, what: str) -> Path:
    """The file that it is in, without importing it. Raises ConfigError."""
    module = name.partition(":")[0]
    try:
        found = importlib.util.find_spec(module)
    except ImportError as error:
        raise ConfigError(f"{what} {name}: {error}") from None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        raise ConfigError(f"{what} {name}: there is no module {module}; it must be importable where flows run")
    return Path(found.origin)


def parameters_of(function: Callable[..., Any], given: Sequence[str], what: str, name: str) -> list[str]:
    """Which of what is `given` by name it asks for. Raises ConfigError for a parameter that nobody gives."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return list(given)
    for each in parameters:
        if each.name not in given and each.default is each.empty and each.kind is not each.VAR_POSITIONAL:
            raise ConfigError(f"{what} {name} has a parameter {each.name!r}; a {what} is given {', '.join(given)}, by name")
    return [each.name for each in parameters if each.name in given]
