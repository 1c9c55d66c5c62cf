"""An lm-eval task's `generation_kwargs` are understood whole or refused by name: to ignore one would measure something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.config import parse
from infra.errors import UnknownKey
from infra.model import Sampling

LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # lm-eval's names, the first given counts
DRAWN = ("temperature", "top_p", "top_k", "min_p")
DEFAULT_MAX_TOKENS = 256  # lm-eval's


def sampling_of(asked: Mapping[str, Any]) -> Sampling:
    """A task's `generation_kwargs`; without `do_sample` or a temperature greedy, as lm-eval understands them.

    Raises UnknownKey for one that the engines would not be told of, ConfigError for a value out of range.
    """
    where, known = "generation_kwargs of an lm-eval task", ["until", "do_sample", *DRAWN, *LIMITS]
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in known:
            raise UnknownKey(name, where=where, known=known)
    until = given.get("until", [])
    stop = [text for text in ([until] if isinstance(until, str) else until) if text]
    drawn = given.get("do_sample", given.get("temperature", 0.0) > 0)
    values = {"temperature": 1.0, **{name: given[name] for name in DRAWN if name in given}} if drawn else {"temperature": 0.0}
    length = next((given[name] for name in LIMITS if name in given), DEFAULT_MAX_TOKENS)
    return parse(Sampling, {**values, "stop": stop, "max_new_tokens": length}, where=where)
