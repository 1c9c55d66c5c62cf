"""An answer is right if it is JSON that a schema allows; what is no JSON is wrong. Nothing is fetched for a schema."""

from __future__ import annotations

import json
import re
from typing import Any

from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import JsonSchemaGrader

FENCE = re.compile(r"\A\s*```\w*\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


def json_schema(settings: JsonSchemaGrader, spec: DatasetSpec) -> Score:
    fixed = None if settings.definition is None else _validator(settings.definition)

    def score(problem: Problem, answer: str) -> float:
        validator = fixed or _validator(json.loads(problem.answer))
        fenced = FENCE.match(answer)
        try:
            value = json.loads(fenced.group(1) if fenced else answer, parse_constant=_refuse)
        except ValueError:
            return 0.0
        return float(validator.is_valid(value))

    return score


def _validator(definition: Any) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    kind = validator_for(definition)
    kind.check_schema(definition)
    nothing_elsewhere: Registry[Any] = Registry()
    return kind(definition, registry=nothing_elsewhere)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
