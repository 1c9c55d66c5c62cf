"""Rows decoded together give each row what it would get alone: padding is on the left, masked, and takes no position.

New rows are prefilled together and merged into the running batch, so a short request never waits for a long one. A
model with sliding-window layers keeps no column per token; its batches stay apart and are stepped in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from infra.engines.embedded.decoding import Decoding, Top
from infra.engines.embedded.live_model import LiveModel
from infra.engines.embedded.sampling import choose_tokens


class Batch:
    """`mask` is [rows, width] of 0 (padding) and 1; the last token of each row is not in the cache yet."""

    def __init__(self, rows: list[Decoding], cache: DynamicCache, mask: torch.Tensor) -> None:
        self.rows, self._cache, self._mask = rows, cache, mask

    @classmethod
    def prefill(cls, model: LiveModel, rows: list[Decoding]) -> Batch:
        """Process every token the rows have so far, and give each its next one."""
        width = max(len(row.token_ids) for row in rows)
        ids = torch.tensor([[0] * (width - len(row.token_ids)) + row.token_ids for row in rows])
        mask = torch.tensor([[0] * (width - len(row.token_ids)) + [1] * len(row.token_ids) for row in rows])
        positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        scored = [row for row in rows if row.wants_prompt_scored]
        cache = model.new_cache()
        logits = model.forward(ids, mask, positions, cache, last_only=not scored)
        for row in scored:
            _score_prompt(row, logits[rows.index(row)])
        batch = cls(rows, cache, mask)
        batch._advance(model, logits[:, -1])
        return batch

    def step(self, model: LiveModel) -> None:
        """One more token for each row."""
        ids = torch.tensor([row.output_ids[-1:] for row in self.rows])
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], dim=-1)
        positions = self._mask.sum(dim=-1, keepdim=True) - 1
        logits = model.forward(ids, self._mask, positions, self._cache, last_only=True)
        self._advance(model, logits[:, -1])

    def drop_finished(self) -> None:
        kept = [index for index, row in enumerate(self.rows) if not row.finished]
        if len(kept) == len(self.rows):
            return
        self.rows = [self.rows[index] for index in kept]
        if not self.rows:
            return
        self._cache.batch_select_indices(torch.tensor(kept))
        self._mask = self._mask[kept]
        if self.mergeable:
            self._pad_to(int(self._mask.sum(dim=-1).max()))

    @property
    def mergeable(self) -> bool:
        return all(type(layer) is DynamicLayer for layer in self._cache.layers)

    def absorb(self, other: Batch) -> None:
        """Take over the rows of `other`, which must not be used afterwards; both must be mergeable."""
        width = max(self._mask.shape[1], other._mask.shape[1])
        self._pad_to(width)
        other._pad_to(width)
        for mine, theirs in zip(self._cache.layers, other._cache.layers, strict=True):
            mine.keys = torch.cat([mine.keys, theirs.keys])
            mine.values = torch.cat([mine.values, theirs.values])
        self._mask = torch.cat([self._mask, other._mask])
        self.rows = self.rows + other.rows

    def _pad_to(self, width: int) -> None:
        """Add masked columns on the left, or take away those that no row uses."""
        missing = width - self._mask.shape[1]
        self._mask = torch.nn.functional.pad(self._mask, (missing, 0))
        for layer in self._cache.layers:
            layer.keys = torch.nn.functional.pad(layer.keys, (0, 0, missing, 0))
            layer.values = torch.nn.functional.pad(layer.values, (0, 0, missing, 0))

    def _advance(self, model: LiveModel, logits: torch.Tensor) -> None:
        tokens, logprobs = choose_tokens(logits, [row.sampling for row in self.rows], [row.random for row in self.rows])
        for index, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            logprob = float(logprobs[index, token]) if row.return_logprob else None
            row.append(token, logprob, _top(logprobs[index : index + 1], row)[0], model.served)


def _score_prompt(row: Decoding, logits: torch.Tensor) -> None:
    """Log-probabilities of the prompt from `logprob_start_len` on; the first has none, as in SGLang."""
    start, padding = row.logprob_start_len, logits.shape[0] - len(row.token_ids)
    prompt: Sequence[int] = row.prompt_ids
    logprobs = torch.log_softmax(logits[padding + start : padding + len(prompt) - 1].float(), dim=-1)
    scored = prompt[start + 1 :]
    row.input_logprobs = [(None, prompt[start])]
    row.input_logprobs += [(float(logprobs[index, token]), token) for index, token in enumerate(scored)]
    row.input_top = [None, *_top(logprobs, row)]


def _top(logprobs: torch.Tensor, row: Decoding) -> list[Top]:
    """The likeliest tokens at each position of `logprobs`, which is [positions, vocabulary]."""
    if not (row.return_logprob and row.top_logprobs_num):
        return [[] for _ in logprobs]
    values, tokens = logprobs.topk(row.top_logprobs_num, dim=-1)
    return [list(zip(*pair, strict=True)) for pair in zip(values.tolist(), tokens.tolist(), strict=True)]
