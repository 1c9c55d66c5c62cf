"""Rows that a user's own function gives, all at once or as it makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra.datasets.rows import Rows, row_of
from infra.errors import ConfigError, DatasetError
from infra.functions import function_of
from infra.model import FunctionSource


def function_rows(dataset: str, source: FunctionSource) -> Rows:
    """Raises ConfigError for a function that is not there, DatasetError with the row at which it raised."""
    function = function_of(source.function, f"dataset {dataset}: source")
    number = 0
    try:
        given = function(**source.settings)
        if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
            kind = type(given).__name__
            raise ConfigError(f"dataset {dataset}: source {source.function} must give rows, one mapping each, not a {kind}")
        for number, value in enumerate(given, 1):
            yield row_of(dict(value) if isinstance(value, Mapping) else value, source.function, number, "row")
    except Exception as error:
        if isinstance(error, ConfigError):
            raise
        message = f"raised {type(error).__name__}: {error}"
        raise DatasetError(message, path=source.function, line=number + 1, unit="row") from error
