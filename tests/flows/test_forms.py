"""The form that the UI makes of a flow's parameters explains itself: every field has a name of its own and says what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from flows.evaluate_live import evaluate_live
from flows.evaluate_snapshot import evaluate_snapshot
from flows.reevaluate_saved import reevaluate_saved


@pytest.mark.parametrize("flow", [evaluate_snapshot, evaluate_live, reevaluate_saved], ids=lambda flow: str(flow.name))
def test_every_field_of_a_form_has_a_title_and_says_what_it_is(flow: Any) -> None:
    schema = parameter_schema(flow).model_dump()
    fields = dict(fields_of(schema))
    assert len(fields) > 40
    for said in ("title", "description"):
        assert [name for name, field in fields.items() if not (field.get(said) or of_class(field, schema).get(said))] == []


def fields_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All fields, as (where it is, what is said of it); a constant is a word that its class explains."""
    for place, model in {"": schema, **schema["definitions"]}.items():
        for name, field in model.get("properties", {}).items():
            if "const" not in field:
                yield f"{place}.{name}", field


def of_class(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The model that a field is one of, whose words stand for those that the field lacks."""
    reference = field.get("$ref") or (field.get("allOf") or [{}])[0].get("$ref", "")
    return dict(schema["definitions"].get(reference.rpartition("/")[2], {}))
