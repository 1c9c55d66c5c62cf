"""What people read in the terminal: at every width no number of a report is cut, and what is folded is all there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from flows.terminal import scores
from tests.infra.examples import REPORT, RESULT

NAME = "mmlu_high_school_european_history_5shot_cot"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_scores_are_whole_in_every_terminal(width: int) -> None:
    console = Console(width=width, force_terminal=True, color_system=None)
    report = replace(REPORT, results=(replace(RESULT, dataset=NAME, n_prompts=1319, n_samples=5276, completion_tokens=20),))
    with console.capture() as captured:
        console.print(scores(report, console))
    output = captured.get()
    assert max(map(len, output.splitlines())) <= width
    for text in ("0.500 [0.30, 0.70]", "1319", "5276", "100.0%"):
        assert text in output
    assert "mml" in output


def test_metrics_of_a_black_box_are_whole() -> None:
    console = Console(width=50, force_terminal=True, color_system=None)
    report = replace(REPORT, results=(), metrics={NAME + "/exact_match,none": -1.7e308, "loss": 0.25})
    with console.capture() as captured:
        console.print(scores(report, console))
    output = captured.get()
    assert "-1.7e+308" in output
    assert "0.25" in output
    assert max(map(len, output.splitlines())) <= 50
