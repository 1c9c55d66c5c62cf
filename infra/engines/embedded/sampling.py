"""Each row of a batch is sampled by its own parameters; temperature 0 or top_k 1 is the argmax and repeats exactly.

The parameters, their ranges and their defaults are SGLang's (python/sglang/srt/sampling/sampling_params.py). One that
this engine does not know is refused by name, because ignoring it would measure something else than was asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any

import torch

from infra.errors import PinpointError

GREEDY_BELOW = 1e-6
DEFAULT_MAX_NEW_TOKENS = 128
WHOLE_VOCABULARY = 1 << 30


class BadRequest(PinpointError):
    """What the client asked for can't be done; becomes a 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """`max_new_tokens` is None where the client gave none: then the default, or what fits in the context."""

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = WHOLE_VOCABULARY
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    n: int = 1

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def parse_sampling_params(raw: Any) -> SamplingParams:
    """Raises: BadRequest, naming the parameter."""
    if not isinstance(raw, Mapping):
        raise BadRequest(f"sampling_params must be an object, got {raw!r}")
    known = {field.name for field in fields(SamplingParams)}
    for name in sorted(raw.keys() - known):
        raise BadRequest(f"unknown sampling parameter {name!r}: the embedded engine knows {', '.join(sorted(known))}")
    given = {name: value for name, value in raw.items() if value is not None}
    return SamplingParams(**{name: _PARSERS[name](name, value) for name, value in given.items()})


def _number(low: float, high: float, *, whole: bool = False, above_low: bool = False) -> Any:
    def parse(name: str, value: Any) -> int | float:
        fits = isinstance(value, int) if whole else isinstance(value, int | float)
        inside = fits and not isinstance(value, bool) and low <= value <= high and not (above_low and value == low)
        if not inside:
            kind, bracket = ("a whole number" if whole else "a number"), ("(" if above_low else "[")
            raise BadRequest(f"{name} must be {kind} in {bracket}{low}, {high}], got {value!r}")
        return int(value) if whole else float(value)

    return parse


def _top_k(name: str, value: Any) -> int:
    parsed: int = _number(-1, WHOLE_VOCABULARY, whole=True)(name, value)
    if parsed == 0:
        raise BadRequest(f"{name} must be -1 (the whole vocabulary) or at least 1, got 0")
    return WHOLE_VOCABULARY if parsed == -1 else parsed


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, got {value!r}")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise BadRequest(f"{name} must be a text or a list of texts, none of them empty, got {value!r}")
    return tuple(texts)


def _ids(name: str, value: Any) -> frozenset[int]:
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise BadRequest(f"{name} must be a list of token ids, got {value!r}")
    return frozenset(value)


_PARSERS: dict[str, Any] = {
    "max_new_tokens": _number(0, 1 << 30, whole=True),
    "temperature": _number(0.0, 1e6),
    "top_p": _number(0.0, 1.0, above_low=True),
    "top_k": _top_k,
    "min_p": _number(0.0, 1.0),
    "stop": _texts,
    "stop_token_ids": _ids,
    "ignore_eos": _flag,
    "sampling_seed": _number(0, 1 << 63, whole=True),
    "skip_special_tokens": _flag,
    "no_stop_trim": _flag,
    "n": _number(1, 1, whole=True),
}


def choose_tokens(
    logits: torch.Tensor, rows: Sequence[SamplingParams], randoms: Sequence[Random]
) -> tuple[list[int], torch.Tensor]:
    """One token a row of `logits`, and the log-probabilities after temperature; both tensors [rows, vocabulary]."""
    temperature = torch.tensor([1.0 if row.greedy else row.temperature for row in rows])
    logprobs = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    tokens = logits.argmax(dim=-1)
    sampled = [index for index, row in enumerate(rows) if not row.greedy]
    if sampled:
        chosen = _draw(logprobs[sampled].exp(), [rows[i] for i in sampled], [randoms[i] for i in sampled])
        tokens[sampled] = chosen
    return tokens.tolist(), logprobs


def _draw(probabilities: torch.Tensor, rows: Sequence[SamplingParams], randoms: Sequence[Random]) -> torch.Tensor:
    """Inverse transform over the sorted probabilities; top_k, top_p and min_p each keep a prefix of them."""
    ordered, ids = probabilities.double().sort(dim=-1, descending=True)
    top_k, top_p, min_p = (
        torch.tensor([getattr(row, name) for row in rows], dtype=torch.float64)[:, None] for name in ("top_k", "top_p", "min_p")
    )
    before = ordered.cumsum(dim=-1) - ordered
    kept = (torch.arange(ordered.shape[-1]) < top_k) & (before < top_p) & (ordered >= min_p * ordered[:, :1])
    cumulative = (ordered * kept).cumsum(dim=-1)
    target = torch.tensor([one.random() for one in randoms], dtype=torch.float64)[:, None] * cumulative[:, -1:]
    rank = (cumulative <= target).sum(dim=-1, keepdim=True)
    # A diverged checkpoint gives NaN, of which nothing is kept: answer with some token rather than die.
    rank = torch.minimum(rank, kept.sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    return ids.gather(-1, rank).squeeze(-1)
