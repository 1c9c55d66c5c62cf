"""The page is one file: its scripts are the plotting library's and two calls of it, and its policy lets nothing else run.

The policy names those scripts by their digests, so that markup which a record might smuggle in would not run either, and
forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps

from infra.charts import curve_chart, curve_png, phases_chart
from infra.model import EvalReport
from infra.report_page.details import Record
from infra.report_page.text import shown, visible
from infra.report_page.view import view_of
from infra.store import Store

WIDTH = 840
MOST_DRAWN, MOST_BARS = 500, 60

_POLICY = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
_EMBEDDING = {
    "mode": "vega-lite",
    "renderer": "svg",
    "ast": True,  # expressions are interpreted: no eval, which the policy forbids
    "actions": {"export": {"svg": True, "png": True}, "source": False, "compiled": False, "editor": False},
}


def page(store: Store, run: str, records: Sequence[Record], samples_of_a_kind: int) -> str:
    """`records` are the run's, by step. Raises StoreError where samples can't be fetched."""
    import vl_convert

    reports = [record for record in records if isinstance(record, EvalReport)]
    library = vl_convert.javascript_bundle(vl_version=_vega_lite_version())  # type: ignore[call-arg]  # the stub lacks a default
    charts = {"curve": curve_chart(run, records, width=WIDTH, most=MOST_DRAWN).to_dict()}
    if reports:
        charts["phases"] = phases_chart(reports[-MOST_BARS:], width=WIDTH).to_dict()
    scripts = [library, "\n".join(_call(name, spec) for name, spec in charts.items())]
    template = _environment().get_template("page.html")
    return template.render(
        view=view_of(store, run, records, samples_of_a_kind),
        scripts=scripts,
        policy=_policy(scripts),
        picture=base64.b64encode(curve_png(run, records)).decode(),
        bars=min(len(reports), MOST_BARS),
    )


def _vega_lite_version() -> str:
    """The one that altair writes charts for."""
    from altair import SCHEMA_VERSION

    return ".".join(str(SCHEMA_VERSION).removeprefix("v").split(".")[:2])


def _call(name: str, spec: Mapping[str, Any]) -> str:
    return f'vegaEmbed("#{name}", {htmlsafe_json_dumps(spec)}, {htmlsafe_json_dumps(_EMBEDDING)}).catch(console.error);'


def _policy(scripts: Sequence[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; {_POLICY}"


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("infra.report_page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["visible"] = visible
    return made
