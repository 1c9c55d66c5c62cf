"""lm-eval's model is the pinned engines: each text is generated, and each likelihood computed, by them and by nothing else.

A prompt that does not fit the model's context is refused, never cut. Only this module imports lm-eval when it is loaded.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Sequence
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from infra.black_boxes.generation_kwargs import sampling_of
from infra.black_boxes.pinned_asker import A, Ask, PinnedAsker
from infra.engines.client import EngineClient, Generation, Logprobs
from infra.errors import EngineDead
from infra.model import Sampling
from infra.running import REQUEST_TIMEOUT_S, REQUESTS_PER_ENGINE, time_for
from infra.validation.tokens import load_tokenizer

POLL_S = 0.2
RESERVED = 7  # tokens of the context: SGLang refuses a prompt of its `max_req_input_len`, which is 6 less than the context
SCORED_AT_ONCE = 16  # per engine, which holds the logits of every token that it scores


class PinnedLM(TemplateLM):  # type: ignore[misc]
    """Made in the event loop that the asker's clients belong to, then used by lm-eval in a thread.

    Once `stopping` is set, what lm-eval waits for is given up.
    """

    def __init__(self, asker: PinnedAsker, folder: Path, stopping: threading.Event) -> None:
        super().__init__()
        self.asker, self.stopping = asker, stopping
        self.tokenizer = load_tokenizer(folder)
        self.context_length = _context_length(folder)
        self._loop = asyncio.get_running_loop()

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context."""
        first = self.tokenizer.bos_token_id
        return self.eot_token_id if first is None else int(first)

    @property
    def tokenizer_name(self) -> str:
        return self.asker.pinned.token

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """A chat template may have written the first token already."""
        if add_special_tokens is None:
            begun = self.tokenizer.bos_token is not None and string.startswith(self.tokenizer.bos_token)
            add_special_tokens = not begun
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=add_special_tokens)
        return ids

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        asked = [(request.args[0], sampling_of(request.args[1])) for request in requests]
        return [generation.text for generation in self._answers([partial(self._generate, *one) for one in asked])]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of each whole text; one that is longer than the context, in windows."""
        texts = [self._windows(self.tok_encode(request.args[0])) for request in requests]
        scores = iter(self._loglikelihood_tokens([((), *window) for windows in texts for window in windows]))
        return [math.fsum(next(scores)[0] for _ in windows) for windows in texts]

    def _windows(self, ids: list[int]) -> list[tuple[list[int], list[int]]]:
        length = self.context_length - RESERVED - 1  # and the token before the first
        return [make_disjoint_window(pair) for pair in get_rolling_token_windows(ids, self.prefix_token_id, length, 1)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """The log-probability of each continuation, and whether greedy decoding would have written it."""
        asked = [partial(self._score, context, continuation) for _, context, continuation in requests]
        scores = self._answers(asked, SCORED_AT_ONCE)
        return [
            (math.fsum(score.values), list(score.likeliest) == continuation)
            for score, (_, _, continuation) in zip(scores, requests, strict=True)
        ]

    async def _generate(self, prompt: str, sampling: Sampling, client: EngineClient, rid: str) -> Generation:
        key = self.asker.pinned.cache_key
        generation = await client.generate(
            self.tok_encode(prompt), sampling, rid=rid, timeout_s=time_for(sampling), cache_key=key
        )
        if generation.finish == "abort":
            raise EngineDead(f"{rid} was aborted", engine=client.base_url)
        return generation

    async def _score(self, context: list[int], continuation: list[int], client: EngineClient, rid: str) -> Logprobs:
        ids, start, key = context + continuation, len(context) - 1, self.asker.pinned.cache_key
        return await client.logprobs(ids, rid=rid, timeout_s=REQUEST_TIMEOUT_S, start=start, cache_key=key)

    def _answers(self, requests: Sequence[Ask[A]], at_once: int = REQUESTS_PER_ENGINE) -> list[A]:
        """Called in lm-eval's thread; the requests run in the loop."""
        running = asyncio.run_coroutine_threadsafe(self.asker.answers(requests, at_once), self._loop)
        while not wait([running], timeout=POLL_S).done:
            if self.stopping.is_set():
                running.cancel()
        return running.result()


def _context_length(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_bytes())
    text = config.get("text_config") or config
    return int(text.get("max_position_embeddings") or text["n_positions"])
