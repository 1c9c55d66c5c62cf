"""A page that lists settings lists all of them, with their defaults, and its example can be used as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from infra.config import PREFIX, SETTINGS_FILE_VARIABLE, Settings, load_settings
from infra.model import (
    Care,
    Choices,
    DatasetSpec,
    FleetSpec,
    FunctionSource,
    LmEvalSource,
    Order,
    ReasoningGymSource,
    SampleOutcome,
    Sampling,
    Where,
)
from infra.suite_files import load_suite
from trainer_integration.dispatcher import DispatchSettings
from trainer_integration.live import LiveSettings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETTINGS, SUITES, LIVE = DOCS / "settings.md", DOCS / "suites.md", DOCS / "live.md"
LISTED: list[tuple[Path, type[BaseModel]]] = [(SETTINGS, Settings), (SETTINGS, DispatchSettings), (SETTINGS, FleetSpec)]
LISTED += [(LIVE, LiveSettings)]
LISTED += [(DOCS / "reevaluation.md", listed) for listed in (Order, Where, Care)]
LISTED += [(SUITES, kind) for kind in (DatasetSpec, Sampling, ReasoningGymSource, LmEvalSource, FunctionSource, Choices)]


def rows(page: Path) -> dict[str, str]:
    """The table rows of a page by what their first cell names."""
    return {found[1]: found[0] for found in re.finditer(r"^\| `(\w+)` \|.*$", page.read_text(), re.MULTILINE)}


def example(page: Path) -> str:
    found = re.search(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("page", "model"), LISTED, ids=lambda value: getattr(value, "__name__", None) or value.name)
def test_every_field_has_its_row_with_its_default(page: Path, model: type[BaseModel]) -> None:
    listed = rows(page)
    for name, field in model.model_fields.items():
        assert name in listed, f"{model.__name__}.{name} is not in {page.name}"
        default: Any = field.default
        if isinstance(default, int | float) and not isinstance(default, bool):
            cells = [cell.strip() for cell in listed[name].split("|")]
            assert float(cells[2]) == default, f"{model.__name__}.{name} is {default} by default"
        elif isinstance(default, str) and default:
            assert f"| `{default}` |" in listed[name], f"{model.__name__}.{name} is {default} by default"


def test_every_variable_is_named() -> None:
    text = SETTINGS.read_text()
    named = {SETTINGS_FILE_VARIABLE, *(PREFIX + name.upper() for name in Settings.model_fields)}
    assert named <= set(re.findall(r"`(PINPOINT_\w+)`", text))


def test_every_outcome_of_a_sample_is_explained() -> None:
    assert {outcome.value for outcome in SampleOutcome} <= rows(SUITES).keys()


def test_the_example_settings_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PINPOINT_FLEET", raising=False)
    (tmp_path / "pinpoint.yaml").write_text(example(SETTINGS))
    assert load_settings(tmp_path / "pinpoint.yaml").fleet.bind == "node"


def test_the_example_suite_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "arithmetic.jsonl").write_text('{"prompt": "What is 17 + 25?", "answer": 42}\n')
    (tmp_path / "nightly.yaml").write_text(example(SUITES))
    assert [dataset.samples_per_prompt for dataset in load_suite(tmp_path / "nightly.yaml").datasets] == [4, 1]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links to {target}"
