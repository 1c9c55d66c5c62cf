"""Points that the flow measured are compared in its report, on its page in Prefect, and by `pinpoint compare`, alike."""

from __future__ import annotations

import json
from dataclasses import asdict

from infra.model import EvalReport
from tests.end_to_end.command import assert_one_clear_line, pinpoint
from tests.end_to_end.points import Points, wait_until


def test_a_second_point_is_set_beside_the_first_wherever_it_is_shown(points: Points) -> None:
    points.submit(points.request(10))
    assert isinstance(points.record(10), EvalReport)
    points.submit(points.request(20))
    report = points.record(20)
    assert isinstance(report, EvalReport), report
    assert [(one.dataset, one.against, one.other and one.other.step) for one in report.comparisons] == [
        ("rows", "previous", 10),
        ("rows", "baseline", 10),
    ]
    difference = report.comparisons[0].difference
    assert difference is not None
    assert (difference.mean, difference.n, difference.verdict) == (0.0, 40, "not told apart")

    done = pinpoint("compare", f"{points.run}@10", f"{points.run}@20", "--store", points.store.url, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["datasets"][0]["difference"] == asdict(difference) | {"verdict": "not told apart"}
    assert any("same weights" in note for note in said["notes"])
    shown = pinpoint("compare", f"{points.run}@10", f"{points.run}@20", "--store", points.store.url)
    assert "step 20 minus step 10" in shown.stdout
    assert_one_clear_line(pinpoint("compare", f"{points.run}@10", f"{points.run}@30", "--store", points.store.url), "10, 20")
    _the_page_in_prefect_says_it_too(points)


def _the_page_in_prefect_says_it_too(points: Points) -> None:
    def page() -> str:
        runs = {"id": {"any_": [run["id"] for run in points.services.flow_runs(points.run) if "000020" in run["name"]]}}
        artifacts = points.services.post(
            "/artifacts/filter", {"flow_runs": runs, "artifacts": {"type": {"any_": ["markdown"]}}}
        )
        return "".join(artifact["data"] for artifact in artifacts)

    wait_until(lambda: "Beside earlier points" in page(), 60)
    assert "| rows | previous, step 10 |" in page()
