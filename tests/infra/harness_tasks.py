"""Tasks of lm-eval in local files: one that generates, one of multiple choice, one that scores whole texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml


def write_task(folder: Path, name: str, rows: Iterable[Mapping[str, Any]], **fields: Any) -> None:
    """`NAME.yaml` and its data; `fields` are those of an lm-eval task."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "metadata": {"version": 1.0},
        **fields,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


def write_generating(folder: Path, name: str, rows: Iterable[Mapping[str, Any]], max_tokens: int = 8, **kwargs: Any) -> None:
    """Rows have `prompt` and `answer`."""
    write_task(
        folder,
        name,
        rows,
        output_type="generate_until",
        doc_to_text="{{prompt}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": [], "max_gen_toks": max_tokens, **kwargs},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )


def write_choosing(folder: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows have `question`, `choices` and `gold`, the position of the right one."""
    write_task(
        folder,
        name,
        rows,
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{gold}}",
        target_delimiter="",
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )


def write_scoring(folder: Path, name: str, texts: Iterable[str]) -> None:
    write_task(
        folder,
        name,
        [{"text": text} for text in texts],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    )


def logged(folder: Path, task: str) -> list[dict[str, Any]]:
    """What lm-eval logged of each sample, in the order of the rows."""
    samples = [json.loads(line) for line in (folder / f"{task}.jsonl").read_text().splitlines()]
    return sorted(samples, key=lambda sample: int(sample["doc_id"]))
