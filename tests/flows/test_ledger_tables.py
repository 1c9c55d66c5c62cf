"""Saved checkpoints as tables: at every width all numbers, states and places are there, and keys that name one each."""

from __future__ import annotations

import pytest
from rich.console import Console

from flows.ledger_tables import ledger_table

ROOT = "/mnt/nfs/experiments/2026/my-run/checkpoints"
DATASETS = "sums, words, mmlu_high_school_european_history_5shot_cot"
TITLE = "Saved checkpoints, in the order of their evaluation"
KEYS = ("4f0c2a9be1d57730-9a41c0de-71b8e5f20c9d3a46", "4f0c2a9be1d57730-9a41c0de-82b8e5f20c9d3a46")
COSTS = {"requests": "12,345", "most tokens": "25,282,560", "GB read": "16.060", "seconds": "812"}
ROWS = [
    {"step": "100500", "state": "would run", "place": f"{ROOT}/step_100500", "datasets": DATASETS, "key": KEYS[0], "why": "–"},
    {"step": "101000", "state": "would run", "place": f"{ROOT}/step_101000", "datasets": DATASETS, "key": KEYS[1], "why": "–"},
    {
        "step": "101500",
        "state": "waits",
        "place": f"{ROOT}/step_101500",
        "datasets": "–",
        "key": "–",
        "why": "3 s, must be 60 s",
    },
]
DRY = [row | (COSTS if row["key"] != "–" else dict.fromkeys(COSTS, "–")) for row in ROWS]
WIDTHS = [40, 60, 80, 100, 120, 160, 250]


def shown(rows: list[dict[str, str]], width: int) -> str:
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(ledger_table(console, TITLE, rows))
    output = captured.get()
    assert max(map(len, output.splitlines())) <= width
    return output


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [ROWS, DRY], ids=["submitted", "dry"])
def test_nothing_that_is_needed_is_cut(rows: list[dict[str, str]], width: int) -> None:
    output = shown(rows, width)
    lines = output.splitlines()
    for row in rows:
        assert any(line.split()[:1] == [row["step"]] for line in lines), output
    folded = "".join(output.split())
    assert all(place in folded for place in ("step_100500", "step_101000", "step_101500"))
    assert "must be 60 s" in " ".join(output.split())
    if rows is DRY:
        assert (output.count("12,345"), output.count(" 812")) == (2, 2), output


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_keys_are_shortened_only_as_far_as_they_name_one_each(width: int) -> None:
    words = [word for word in shown(DRY, width).split() if word.startswith(KEYS[0][:8])]
    assert len(set(words)) == 2
    assert all(key.startswith(tuple(words)) for key in KEYS)


def test_in_a_wide_terminal_all_is_whole_and_a_place_can_be_copied() -> None:
    output = shown(DRY, 250)
    for row in DRY:
        assert row["place"] in output
    assert KEYS[0] in output
    assert output.count(DATASETS) == 2
    assert "below" not in output


def test_where_the_folder_of_all_is_left_out_of_the_places_the_title_names_it() -> None:
    output = shown(DRY, 100)
    assert f"below {ROOT}/" in " ".join(output.split())
    assert f"{ROOT}/step" not in output


def test_what_failed_has_its_key_step_tries_place_and_cause_in_every_terminal() -> None:
    rows = [
        {"key": key, "step": str(n), "tries": "3", "place": f"{ROOT}/step_{n}", "why": f"ckpt_invalid: bad shard {n}"}
        for n, key in enumerate(KEYS, 100)
    ]
    for width in WIDTHS:
        text = " ".join(shown(rows, width).split())
        for row in rows:
            assert row["step"] in text
            assert row["why"].split()[-1] in text
            assert f"step_{row['step']}" in text.replace(" ", "")
