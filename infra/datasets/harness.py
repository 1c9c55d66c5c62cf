"""Rows of an lm-eval task: prompts, few-shot examples included, and answers are what the task itself makes of its data.

The data is local: nothing is fetched from a hub. Only tasks that generate can be asked; those that score given texts are
for the black box `LmEvalHarness`.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from infra.datasets.rows import Row, Rows
from infra.errors import ConfigError, DatasetError
from infra.model import LmEvalSource

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
FEWSHOT_SEED = 1234  # lm-eval's own


def task_rows(dataset: str, source: LmEvalSource, called: str) -> Rows:
    """Each row has the task's document, and what the task makes of it as `prompt` and `answer`.

    Raises ConfigError for a task that there is not, that has no local data, or that does not generate.
    """
    task = _task(dataset, source)
    for number, doc in enumerate(task.eval_docs, 1):
        prompt = task.fewshot_context(doc, source.num_fewshot, gen_prefix=task.doc_to_prefix(doc))
        target = task.doc_to_target(doc)
        answers = target if isinstance(target, list) else [target]
        if len(answers) != 1:
            message = f"has {len(answers)} right answers, and a row can have one: {target!r:.80}"
            yield DatasetError(message, path=called, line=number, unit="row")
        else:
            yield Row({**doc, "prompt": prompt, "answer": answers[0]}, called, number, "row")


def prepare(what: str) -> None:
    """Before lm-eval is imported. Raises ConfigError without it."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(f"{what} needs lm-eval: pip install 'pinpoint-eval[lm-eval]'")
    for variable in OFFLINE:  # read when lm-eval is first imported
        os.environ.setdefault(variable, "1")


def task_index(names: Sequence[str], include_path: str | None) -> Any:
    """lm-eval's index of tasks; of `include_path` alone if all are tasks there, since reading its own takes 10 s and more.

    Raises ConfigError for a name that there is not, with the nearest there is.
    """
    from lm_eval.tasks import TaskManager

    own = TaskManager(include_path=include_path, include_defaults=False)
    if set(names) <= set(own.all_subtasks):
        return own
    index = TaskManager(include_path=include_path)
    for name in names:
        if name not in index.all_tasks:
            nearest = difflib.get_close_matches(name, index.all_tasks, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "give include_path, the folder of its YAML file"
            raise ConfigError(f"lm-eval knows no task {name!r}: {hint}")
    return index


def _task(dataset: str, source: LmEvalSource) -> Any:
    prepare(f"dataset {dataset}: source lm_eval")
    try:
        tasks = task_index([source.lm_eval], source.include_path).load(source.lm_eval)["tasks"]
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        message = f"dataset {dataset}: lm-eval task {source.lm_eval!r} can't be read; only local data is"
        raise ConfigError(f"{message}: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
    if len(tasks) != 1:
        raise ConfigError(f"dataset {dataset}: {source.lm_eval!r} is not one lm-eval task but {len(tasks)}: {', '.join(tasks)}")
    (task,) = tasks.values()
    if task.OUTPUT_TYPE != "generate_until":
        message = f"dataset {dataset}: lm-eval task {source.lm_eval!r} is of type {task.OUTPUT_TYPE}, and only generate_until"
        raise ConfigError(f"{message} can be asked: evaluate it with LmEvalHarness (docs/black-box.md)")
    task.set_fewshot_seed(FEWSHOT_SEED)
    return task
