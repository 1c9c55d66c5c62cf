"""Rows of a procedural family of the `reasoning-gym` package."""

from __future__ import annotations

from infra.datasets.rows import Row, Rows
from infra.errors import ConfigError
from infra.model import ReasoningGymSource


def gym_rows(dataset: str, source: ReasoningGymSource, called: str, limit: int | None) -> Rows:
    """Raises ConfigError for a family or setting that does not exist."""
    import reasoning_gym

    size = min(source.size, limit or source.size)
    try:
        made = reasoning_gym.create_dataset(source.reasoning_gym, size=size, seed=source.seed, **source.config)
        for index, entry in enumerate(made):
            fields = {"prompt": entry["question"], "id": f"{source.reasoning_gym}-{index}", **entry}
            yield Row(fields, called, index + 1, "row")
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"dataset {dataset}: reasoning-gym {source.reasoning_gym!r}: {error}") from None
