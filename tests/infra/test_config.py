"""Settings are parsed once; a key or variable that nobody reads is refused with the nearest right name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.config import load_settings
from infra.errors import ConfigError, UnknownKey
from infra.store import Store


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PINPOINT_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pinpoint.yaml"


def test_precedence_is_arguments_then_environment_then_file_then_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().ray_address is None
    file.write_text("ray_address: from-file:1")
    assert load_settings(file).ray_address == "from-file:1"
    monkeypatch.setenv("PINPOINT_RAY_ADDRESS", "from-env:1")
    assert load_settings(file).ray_address == "from-env:1"
    assert load_settings(file, ray_address="argument:1").ray_address == "argument:1"
    assert load_settings(file, ray_address=None).ray_address == "from-env:1"


def test_the_file_can_be_named_by_a_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("fleet: {num_engines: 3}")
    monkeypatch.setenv("PINPOINT_SETTINGS", str(file))
    assert load_settings().fleet.num_engines == 3


def test_the_fleet_can_be_given_as_json_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPOINT_FLEET", '{"num_engines": 5}')
    assert load_settings().fleet.num_engines == 5


def test_the_default_store_is_a_folder_in_home(tmp_path: Path) -> None:
    assert load_settings(home=tmp_path).store == (tmp_path / "store").as_uri()
    assert load_settings(home=tmp_path, store_url="s3://b").store == "s3://b"


def test_the_s3_endpoint_is_given_on_under_the_name_that_the_libraries_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://old")
    load_settings().export_s3()
    assert os.environ["AWS_ENDPOINT_URL"] == "http://old"
    load_settings(s3_endpoint_url="http://new").export_s3()
    assert os.environ["AWS_ENDPOINT_URL"] == "http://new"


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_name(file: Path) -> None:
    file.write_text("store_ulr: file:///x")
    with pytest.raises(UnknownKey, match=r"pinpoint.yaml: did you mean 'store_url'"):
        load_settings(file)


def test_an_unknown_nested_key_is_refused_with_the_nearest_name_of_its_level(file: Path) -> None:
    file.write_text("fleet: {num_engine: 3}")
    with pytest.raises(UnknownKey, match="did you mean 'num_engines'"):
        load_settings(file)


def test_an_unknown_variable_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPOINT_RAY_ADRESS", "x")
    with pytest.raises(UnknownKey, match="did you mean 'PINPOINT_RAY_ADDRESS'"):
        load_settings()


def test_an_unknown_key_within_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPOINT_FLEET", "{bnd: node}")
    with pytest.raises(UnknownKey, match="did you mean 'bind'"):
        load_settings()


@pytest.mark.parametrize("value", ["{", "[1]", "text", ""])
def test_a_fleet_variable_that_is_no_mapping_is_refused_in_words(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPOINT_FLEET", value)
    with pytest.raises(ConfigError, match="(?i)fleet"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("fleet: {num_engines: 0}", "fleet.num_engines"),
        ("fleet: {num_engines: many}", "fleet.num_engines"),
        ("fleet: {bind: everywhere}", "fleet.bind"),
        ("fleet: {name: 'a b'}", "fleet.name"),
        ("home: 3", "home"),
    ],
)
def test_a_value_out_of_range_or_of_the_wrong_type_is_named(file: Path, text: str, named: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=named) as caught:
        load_settings(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"), [("a: [", "is not YAML"), ("- 1", "not list"), ("", "not NoneType"), ("just words", "not str")]
)
def test_a_file_that_holds_no_mapping_is_refused_in_one_line(file: Path, text: str, named: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=named) as caught:
        load_settings(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_exist_or_is_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere.yaml does not exist"):
        load_settings(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_settings(tmp_path)


def test_credentials_in_the_settings_reach_the_store_library_and_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("PINPOINT_S3_SECRET_ACCESS_KEY", "hush")
    settings = load_settings(s3_endpoint_url="http://s3:9000", s3_access_key_id="key")
    settings.export_s3()
    assert os.environ["AWS_ENDPOINT_URL"] == "http://s3:9000"
    assert (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]) == ("key", "hush")
    assert "hush" not in repr(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    "text",
    ["s3_secret_access_key: 12345678", "s3_secret_access_key: 'hush12345678", "s3_secret_access_key: a: hush12345678"],
)
def test_no_error_shows_a_secret(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert "12345678" not in str(caught.value)
    assert "s3_secret_access_key" in str(caught.value) or "line 1" in str(caught.value)


def test_a_home_with_a_space_keeps_its_store_inside(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "my höme #1")
    Store(settings.store).write("a", b"x")
    assert (tmp_path / "my höme #1" / "store" / "a").read_bytes() == b"x"
