"""One request's state: every token it produced is attributed to the weight version that produced it.

Owned by the model thread from submission until its future resolves; read-only afterwards.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from typing import Any

from infra.engines.embedded.live_model import Served
from infra.engines.embedded.sampling import SamplingParams

Top = list[tuple[float, int]]  # log-probability and token, the likeliest first


@dataclass(slots=True)
class VersionSpan:
    """Output positions `start` to `end` (exclusive) came from the weights labelled `version`."""

    version: str
    start: int
    end: int


@dataclass(slots=True, eq=False, kw_only=True)
class Decoding:
    rid: str
    prompt_ids: list[int]
    sampling: SamplingParams
    max_new_tokens: int
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    ticket: int = -1
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[Top] = field(default_factory=list)
    input_logprobs: list[tuple[float | None, int]] | None = None
    input_top: list[Top | None] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    retractions: int = 0
    finish_reason: dict[str, Any] | None = None
    finished_under: Served | None = None
    started_at: float = field(default_factory=time.monotonic)
    finished_at: float = 0.0
    random: Random = field(init=False)
    future: Future[Decoding] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.random = Random(self.sampling.sampling_seed)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def wants_prompt_scored(self) -> bool:
        return self.return_logprob and self.logprob_start_len >= 0 and self.input_logprobs is None

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_ids + self.output_ids

    def append(self, token: int, logprob: float | None, top: Top, served: Served) -> None:
        """Take one more token, and finish if it is the last."""
        if self.max_new_tokens > 0:
            self._record(token, logprob, top, served.version)
        reason = self._reason_to_finish(served)
        if reason is not None:
            self.finish(reason, served)

    def abort(self, served: Served, message: str) -> None:
        self.finish({"type": "abort", "message": message, "status_code": None, "err_type": None}, served)

    def finish(self, reason: dict[str, Any], served: Served) -> None:
        self.finish_reason, self.finished_under, self.finished_at = reason, served, time.monotonic()
        self.future.set_result(self)

    def _record(self, token: int, logprob: float | None, top: Top, version: str) -> None:
        position = len(self.output_ids)
        if not self.spans or self.spans[-1].version != version:
            self.spans.append(VersionSpan(version, position, position))
        self.spans[-1].end = position + 1
        self.output_ids.append(token)
        if logprob is not None:
            self.output_logprobs.append(logprob)
            self.output_top.append(top)

    def _reason_to_finish(self, served: Served) -> dict[str, Any] | None:
        # SGLang's order: the length first, then stop tokens (all of which `ignore_eos` turns off), then stop texts.
        if len(self.output_ids) >= self.max_new_tokens:
            return {"type": "length", "length": self.max_new_tokens}
        last = self.output_ids[-1]
        if not self.sampling.ignore_eos and last in served.stop_ids | self.sampling.stop_token_ids:
            return {"type": "stop", "matched": last}
        text = self._matched_text(served)
        return None if text is None else {"type": "stop", "matched": text}

    def _matched_text(self, served: Served) -> str | None:
        if not self.sampling.stop:
            return None
        # A token is at least one byte, so a match that ends in the newest token lies within this window.
        window = max(len(text.encode()) for text in self.sampling.stop) + 1
        tail = served.tokenizer.decode(self.output_ids[-window:], skip_special_tokens=self.sampling.skip_special_tokens)
        return next((text for text in self.sampling.stop if text in tail), None)
