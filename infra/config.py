"""Settings are parsed once, at the entry; a key or variable that nobody reads is refused with the nearest right name.

Order of precedence: arguments, `PINPOINT_*` variables, the settings file, defaults. Secrets are never printed, and reach the
store's own library, and our child processes, only as the standard `AWS_*` variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError, field_validator

from infra.engines.arguments import resolve
from infra.errors import ConfigError, UnknownKey
from infra.model import FleetSpec
from infra.sinks import check_name
from infra.store import S3Access

Model = TypeVar("Model", bound=BaseModel)
PREFIX = "PINPOINT_"
SETTINGS_FILE_VARIABLE = "PINPOINT_SETTINGS"
OPTIONS_PREFIX = "PINPOINT_EVAL_"  # a training run's options, which trainer_integration.eval_options reads and checks


class Settings(BaseModel):
    """Where things are on this machine. Each field can be given as `PINPOINT_<NAME>`; `fleet` as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    home: Path = Field(default_factory=lambda: Path.home() / ".pinpoint", description="Prefect's database, local store")
    store_url: str = Field(default="", description="object store, file:// or s3://; default: a folder in `home`")
    s3_endpoint_url: str | None = Field(default=None, description="S3 server, if it is not AWS")
    s3_access_key_id: str | None = Field(default=None, description="credentials; default: what the AWS SDK finds")
    s3_secret_access_key: SecretStr | None = Field(default=None, description="never shown, logged or sent on")
    prefect_api_url: str | None = Field(default=None, description="Prefect API; default: a server that Pinpoint starts")
    ray_address: str | None = Field(default=None, description="Ray GCS host:port; default: a Ray that Pinpoint starts")
    staging_dir: Path = Field(default_factory=lambda: _default_staging(), description="where a trainer stages snapshots")
    fetched_bytes: int | None = Field(
        default=None, ge=0, description="most bytes of fetched snapshots on a node; default: what is free in `staging_dir`"
    )
    secrets_block: str | None = Field(
        default=None, description="Prefect Secret block with environment variables of the runner of flows: docs/deploy.md"
    )
    fleet: FleetSpec = FleetSpec()
    sinks: tuple[str, ...] = Field(
        default=(), description="trackers that get every point when it has its record: docs/sinks.md"
    )

    @field_validator("sinks", mode="before")
    @classmethod
    def _known_sinks(cls, given: Any) -> Any:
        """A list, or names between commas; a name that no sink has is refused."""
        names = given.split(",") if isinstance(given, str) else given
        return tuple(check_name(name.strip()) for name in names if name.strip())

    @property
    def store(self) -> str:
        return self.store_url or (self.home.expanduser().absolute() / "store").as_uri()

    def s3_access(self) -> S3Access:
        """For a store of our own in a process whose other S3 clients are not ours to redirect: a trainer's."""
        secret = self.s3_secret_access_key
        return S3Access(
            endpoint_url=self.s3_endpoint_url,
            key=self.s3_access_key_id,
            secret=secret.get_secret_value() if secret else None,
        )

    def export_s3(self) -> None:
        """Gives endpoint and credentials to this process and its children under the names that the S3 libraries read."""
        access = self.s3_access()
        given = {
            "AWS_ENDPOINT_URL": access.endpoint_url,
            "AWS_ACCESS_KEY_ID": access.key,
            "AWS_SECRET_ACCESS_KEY": access.secret,
        }
        os.environ.update({name: value for name, value in given.items() if value})


def _default_staging() -> Path:
    """tmpfs where there is one: staging there is a copy in memory, which is all the training loop waits for."""
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
    return base / f"pinpoint-{os.getuid()}"


def load_settings(path: str | Path | None = None, **arguments: Any) -> Settings:
    """Reads the settings of this process.

    Raises:
        UnknownKey: a key of the file, or a `PINPOINT_*` variable, that is no setting.
        ConfigError: a file that is missing or malformed, a value out of range, engine arguments that are not the user's to set.
    """
    path = path or os.environ.get(SETTINGS_FILE_VARIABLE)
    from_file = read_mapping(Path(path)) if path else {}
    refuse_unknown(from_file, Settings, where=str(path))
    values = {**from_file, **_environment(os.environ), **{k: v for k, v in arguments.items() if v is not None}}
    settings = parse(Settings, values, where=str(path or "settings"))
    resolve(settings.fleet)
    return settings


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    known = {PREFIX + name.upper(): name for name in Settings.model_fields}
    values: dict[str, Any] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable == SETTINGS_FILE_VARIABLE or variable.startswith(OPTIONS_PREFIX):
            continue
        if variable not in known:
            raise UnknownKey(variable, where="the environment", known=[*known, SETTINGS_FILE_VARIABLE])
        values[known[variable]] = _json(variable, value) if known[variable] == "fleet" else value
    return values


def _json(variable: str, value: str) -> Any:
    try:
        return yaml.safe_load(value)  # YAML holds JSON
    except yaml.YAMLError:
        raise ConfigError(f"{variable} is not JSON: {value!r:.80}") from None


def parse(model: type[Model], values: Mapping[str, Any], *, where: str) -> Model:
    """`values` as `model`; every fault is named in one line, an unknown key with its nearest right name."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise _readable(error, model, where) from None


def _readable(error: ValidationError, model: type[BaseModel], where: str) -> ConfigError:
    for fault in error.errors():
        if fault["type"] == "extra_forbidden":
            key = str(fault["loc"][-1])
            return UnknownKey(key, where=where, known=_keys_at(model, fault["loc"][:-1]))
    return ConfigError(f"{where}: {'; '.join(_fault(fault) for fault in error.errors())}")


def _fault(fault: Mapping[str, Any]) -> str:
    """One fault, with the value that is at fault unless it is, or may hold, a secret."""
    place = ".".join(map(str, fault["loc"])) or "value"
    hidden = "secret" in place or isinstance(fault["input"], dict)
    return f"{place}: {fault['msg']}" + ("" if hidden else f" (got {fault['input']!r:.80})")


def _keys_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys that `model` knows at a nested location, from its JSON schema."""
    schema = TypeAdapter(model).json_schema()
    node: dict[str, Any] = schema
    for part in location:
        properties = node.get("properties", {})
        kinds = node.get("discriminator", {}).get("mapping", {})
        node = {"$ref": kinds[part]} if part in kinds else properties.get(part, node)
        if part in schema.get("$defs", {}):  # of several kinds of mapping, the one that was meant
            node = schema["$defs"][part]
        if "discriminator" in node:  # which of its kinds it is, the next part says
            continue
        references = [node, *node.get("anyOf", []), node.get("items") or {}]
        target = next((r["$ref"].rsplit("/", 1)[-1] for r in references if "$ref" in r), None)
        node = schema["$defs"][target] if target else node
    return list(node.get("properties", {}))


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML (or JSON) file that holds a mapping."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"file {path} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML{_place_of(error)}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold a mapping of keys, not {type(loaded).__name__}")
    return loaded


def _place_of(error: Exception) -> str:
    """Where and why, but not the text that stands there: it may be a secret."""
    mark = getattr(error, "problem_mark", None)
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"{place}: {getattr(error, 'problem', None) or type(error).__name__}"


def refuse_unknown(mapping: Mapping[str, Any], known: type[BaseModel] | set[str], *, where: str) -> None:
    """Raises UnknownKey for the first key that nobody knows."""
    names = known if isinstance(known, set) else set(known.model_fields)
    for key in mapping:
        if key not in names:
            raise UnknownKey(str(key), where=where, known=names)
