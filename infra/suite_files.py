"""A suite comes from a YAML file, from a name of those that Pinpoint brings, or from a list in code; all are read alike.

Unknown keys are refused at each level, and files must be there before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.config import parse, read_mapping, refuse_unknown
from infra.datasets.files import is_remote, local_paths
from infra.errors import ConfigError
from infra.miles_suite import read_eval_config
from infra.model import DatasetSpec, LmEvalSource, Suite
from infra.suites import ready_suite, ready_suites

TAKEN_RELATIVE = "'source' is taken relative to the suite file"
TAKEN_FROM_HERE = "a ready suite looks for it in the current folder; put it there, or save the suite and change it"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a suite's paths are relative to, what it is called, and what to do about a file that is not there."""

    folder: Path
    suite: str
    remedy: str

    def path(self, given: str) -> str:
        return str((self.folder / Path(given).expanduser()).absolute())


def load_suite(suite: str | Path) -> Suite:
    """Reads a suite file, or a ready suite by its name: `name`, `defaults` and `datasets`, or Miles' `eval` with both.

    File sources are taken relative to the suite file, those of a ready suite to the folder of the process, and must exist.

    Raises:
        UnknownKey, ConfigError: what can't be meant; a missing dataset file is named.
    """
    path, folder = find_suite(suite)
    raw = read_mapping(path)
    if set(raw) == {"eval"}:
        return read_eval_config(path, {}, name=path.stem)
    refuse_unknown(raw, {"name", "defaults", "datasets"}, where=str(path))
    defaults = raw.get("defaults") or {}
    if not isinstance(defaults, dict) or not isinstance(raw.get("datasets"), list):
        raise ConfigError(f"{path}: 'defaults' must be a mapping and 'datasets' a list of mappings")
    remedy = TAKEN_RELATIVE if folder == path.parent else f"{TAKEN_FROM_HERE}: `pinpoint suite show {suite} --yaml` prints it"
    return _suite(raw["datasets"], raw.get("name", path.stem), defaults, Place(folder, str(path), remedy))


def find_suite(suite: str | Path) -> tuple[Path, Path]:
    """The file of a suite, and the folder that its sources are relative to. A file is preferred to a ready suite of its name.

    Raises ConfigError if there is neither.
    """
    path = Path(suite)
    if path.exists():
        return path, path.parent
    if (ready := ready_suite(str(suite))) is not None:
        return ready, Path.cwd()
    raise ConfigError(f"file {path} does not exist, and no ready suite has this name: {', '.join(ready_suites())}")


def suite_of(
    datasets: Sequence[DatasetSpec | Mapping[str, Any]],
    *,
    name: str,
    defaults: Mapping[str, Any] | None = None,
    folder: str | Path = ".",
    where: str = "suite",
) -> Suite:
    """A suite of a list in code; mappings are as in a file, and take what they do not say from `defaults`.

    Raises UnknownKey, ConfigError, in which `where` is what the list is called.
    """
    return _suite(datasets, name, defaults or {}, Place(Path(folder), where, f"'source' is taken relative to {folder}"))


def _suite(entries: Sequence[Any], name: str, defaults: Mapping[str, Any], place: Place) -> Suite:
    if not entries:
        raise ConfigError(f"{place.suite}: 'datasets' is empty, so there is nothing to measure: name at least one")
    datasets = [_placed(_dataset(place.suite, defaults, entry), place) for entry in entries]
    return parse(Suite, {"name": name, "datasets": datasets}, where=place.suite)


def _dataset(suite: str, defaults: Mapping[str, Any], entry: Any) -> DatasetSpec:
    if isinstance(entry, DatasetSpec):
        return entry
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{suite}: each entry of 'datasets' must be a mapping, not {entry!r}")
    where = f"{suite}, dataset {entry.get('name', '?')!r}"
    for mapping, place in ((defaults, f"{suite}, defaults"), (entry, where)):
        refuse_unknown(mapping, DatasetSpec, where=place)
        if not isinstance(mapping.get("sampling") or {}, dict):
            raise ConfigError(f"{place}: 'sampling' must be a mapping, not {mapping['sampling']!r:.80}")
    sampling = {**(defaults.get("sampling") or {}), **(entry.get("sampling") or {})}
    return parse(DatasetSpec, {**defaults, **entry, "sampling": sampling}, where=where)


def _placed(spec: DatasetSpec, place: Place) -> DatasetSpec:
    """With absolute paths. Raises ConfigError for a file of this machine that is not there."""
    match spec.source:
        case str() as source if not is_remote(source):
            given = source if source.startswith("file://") else place.path(source)
            if not local_paths(given):
                raise ConfigError(f"{place.suite}, dataset {spec.name!r}: file {given} does not exist; {place.remedy}")
            return spec.model_copy(update={"source": given})
        case LmEvalSource(include_path=str() as path):
            task = spec.source.model_copy(update={"include_path": place.path(path)})
            return spec.model_copy(update={"source": task})
        case _:
            return spec
