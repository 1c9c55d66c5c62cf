"""SGLang's native HTTP protocol, spoken with a deadline on every call; a dropped connection is a dead engine.

Source of the wire format: sglang 0.5.x `entrypoints/http_server.py`. `weight_version` is read from `/model_info` only:
`/server_info` keeps its start value for ever.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from infra.errors import EngineDead, EngineRefused, EngineTimeout
from infra.model import Sampling

CONNECT_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One response. `weight_versions` are those of all its spans, in order; `finish` is stop, length or abort.

    `matched` is the stop text that ended it, which `text` is without, or nothing.
    """

    text: str
    finish: str
    weight_versions: tuple[str, ...]
    completion_tokens: int
    matched: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """How likely an engine finds a text that it is given, token by token; entry i is of the input token `start` + 1 + i.

    `values` are natural logarithms, nan where the engine has no number. `likeliest` are the tokens that greedy decoding
    would have taken at the same places. `weight_versions` are as in Generation.
    """

    values: tuple[float, ...]
    likeliest: tuple[int, ...]
    weight_versions: tuple[str, ...]


class EngineClient:
    """One engine; use as an async context manager."""

    def __init__(self, base_url: str, api_key: str = "") -> None:
        self.base_url = base_url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(self.base_url, connector=connector, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def weight_version(self) -> str:
        """The label of the weights that the engine says it serves."""
        info = await self._call("GET", "/model_info", timeout_s=CONTROL_TIMEOUT_S)
        with self._understood("/model_info", info):
            return str(info["weight_version"] or "")

    async def probe(self, timeout_s: float) -> None:
        """A round trip to the part that generates, paused or not. Raises EngineError if it gives no answer in time."""
        await self._call("GET", "/server_info", timeout_s=timeout_s)

    async def load(self, timeout_s: float) -> tuple[int, int]:
        """How many requests it works on, and how many wait in it, over all its ranks."""
        answer = await self._call("GET", "/v1/loads?include=core", timeout_s=timeout_s)
        with self._understood("/v1/loads", answer):
            ranks = answer["loads"]
            return sum(int(rank["num_running_reqs"]) for rank in ranks), sum(int(rank["num_waiting_reqs"]) for rank in ranks)

    async def update_weights(self, checkpoint_path: str, version: str, timeout_s: float) -> None:
        """Loads a checkpoint folder that the engine can read, and labels it `version`.

        Raises EngineRefused if the engine says that it did not; its weights are then not to be relied on.
        """
        body = {
            "model_path": checkpoint_path,
            "weight_version": version,
            "abort_all_requests": False,
            "flush_cache": True,
        }
        await self._call("POST", "/update_weights_from_disk", body, timeout_s=timeout_s)

    async def resume(self) -> None:
        """Takes requests again, if somebody has left it paused."""
        await self._call("POST", "/continue_generation", {}, timeout_s=CONTROL_TIMEOUT_S)

    async def checksums(self, timeout_s: float) -> tuple[str, dict[str, str], str]:
        """The engine's own checksum over all it holds, that of each tensor, and the algorithm ("" if not said).

        Of several ranks, each holds its own part of a tensor: its name is then NAME@RANK/RANKS for tensor-parallel ranks, and
        NAME@NUMBER for others.
        """
        answer = await self._call("POST", "/weights_checker", {"action": "checksum"}, timeout_s=timeout_s)
        tensors: dict[str, str] = {}
        with self._understood("/weights_checker", answer):
            ranks = answer["ranks"]
            for number, rank in enumerate(ranks):
                place = _place(rank, number) if len(ranks) > 1 else ""
                tensors.update({f"{name}{place}": str(checksum) for name, checksum in rank["checksums"].items()})
            whole = str(answer["per_engine_checksum"])
            if len(ranks) > 1:  # SGLang's is over the ranks in the order in which they answered
                whole = hashlib.sha256(orjson.dumps(tensors, option=orjson.OPT_SORT_KEYS)).hexdigest()
            return whole, tensors, str(answer.get("algorithm", ""))

    async def generate(
        self, prompt: str | Sequence[int], sampling: Sampling, *, rid: str, timeout_s: float, cache_key: str = ""
    ) -> Generation:
        """One response to one prompt: a text, which the engine's tokenizer may add special tokens to, or tokens.

        A call that is cancelled closes its connection, at which an engine drops the request.

        What an engine keeps of prompts is shared only with requests of the same `cache_key` (SGLang calls it `extra_key`).
        Raises UnicodeEncodeError for a prompt that is no Unicode text (half a surrogate pair): JSON can't carry it.
        """
        if isinstance(prompt, str):
            prompt.encode()  # orjson's own complaint is a TypeError, which could be a bug of ours as well
        body: dict[str, Any] = {
            **({"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}),
            "sampling_params": sampling.model_dump(mode="json", exclude_none=True),
            "rid": rid,
        }
        body |= {"extra_key": cache_key} if cache_key else {}
        answer = await self._call("POST", "/generate", body, timeout_s=timeout_s)
        with self._understood("/generate", answer):
            meta = answer["meta_info"]
            return Generation(
                text=answer["text"],
                finish=meta["finish_reason"]["type"],
                weight_versions=_versions(meta),
                completion_tokens=int(meta["completion_tokens"]),
                matched=matched if isinstance(matched := meta["finish_reason"].get("matched"), str) else "",
            )

    async def logprobs(
        self, input_ids: Sequence[int], *, rid: str, timeout_s: float, start: int = 0, cache_key: str = ""
    ) -> Logprobs:
        """The log-probability of each input token after `start`, given those before it; nothing is generated.

        An engine may use what it keeps of earlier requests for tokens up to `start`, of the same `cache_key` as in `generate`.
        Raises EngineRefused as well for an answer that is about other tokens than these, and for a request that was aborted.
        """
        body: dict[str, Any] = {
            "input_ids": list(input_ids),
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
            "top_logprobs_num": 1,
            "rid": rid,
        }
        body |= {"extra_key": cache_key} if cache_key else {}
        answer = await self._call("POST", "/generate", body, timeout_s=timeout_s)
        with self._understood("/generate", answer):
            meta = answer["meta_info"]
            _, *scored = meta["input_token_logprobs"]
            _, *likeliest = meta["input_top_logprobs"]
            if meta["finish_reason"]["type"] == "abort" or [token for _, token, *_ in scored] != list(input_ids)[start + 1 :]:
                raise ValueError(f"it ended with {meta['finish_reason']}, with log-probabilities of {len(scored)} tokens")
            return Logprobs(
                values=tuple(math.nan if value is None else float(value) for value, *_ in scored),
                likeliest=tuple(int(best[0][1]) for best in likeliest[: len(scored)]),
                weight_versions=_versions(meta),
            )

    @contextmanager
    def _understood(self, path: str, answer: Any) -> Iterator[None]:
        """An answer that is not of the protocol is one that says no."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"{path} answered what can't be read ({type(error).__name__}: {error}): {str(answer)[:200]}"
            raise EngineRefused(message, engine=self.base_url, status=200) from None

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float) -> Any:
        if self._session is None:
            raise RuntimeError("use EngineClient as an async context manager")
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"} if data else None
        try:
            async with self._session.request(method, path, data=data, headers=headers, timeout=timeout) as response:
                content = await response.read()
                status = response.status
        except TimeoutError:
            raise EngineTimeout(f"{path} gave no answer within {timeout_s:g} s", engine=self.base_url) from None
        except aiohttp.ClientError as error:
            raise EngineDead(f"{path}: {type(error).__name__}: {error}", engine=self.base_url) from None
        return self._parsed(path, status, content)

    def _parsed(self, path: str, status: int, content: bytes) -> Any:
        try:
            answer = orjson.loads(content) if content[:1] in (b"{", b"[") else content.decode(errors="replace")
        except orjson.JSONDecodeError:
            answer = content.decode(errors="replace")
        failed = isinstance(answer, dict) and answer.get("success") is False
        if status >= 400 or failed:
            message = answer
            while isinstance(message, dict) and (inner := message.get("message") or message.get("error")):
                message = inner
            raise EngineRefused(f"{path} answered {status}: {str(message)[:500]}", engine=self.base_url, status=status)
        return answer


def _versions(meta: dict[str, Any]) -> tuple[str, ...]:
    """Those of all spans; a response without a token, or from an engine that knows no spans, has the one at its end."""
    spans = meta.get("weight_versions") or [{"version": meta.get("weight_version", "")}]
    return tuple(str(span["version"]) for span in spans)


def _place(rank: dict[str, Any], number: int) -> str:
    """Where the rank is, if tensor parallelism alone decides what it holds."""
    said = rank.get("parallelism_info") or [{}]
    info = said[0] if isinstance(said, list) else said
    plain = len(said) == 1 and info.get("role", "target") == "target" and info.get("dp_size", 1) == info.get("pp_size", 1) == 1
    return f"@{info['tp_rank']}/{info['tp_size']}" if plain and info.get("tp_size", 0) > 1 else f"@{number}"
