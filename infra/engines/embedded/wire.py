"""A request is understood whole or refused with 400; a prompt that does not fit the context is never cut.

The shapes are SGLang's (python/sglang/srt/managers/io_struct.py, `GenerateReqInput`): `text` or `input_ids`, one or a
list; with a list, every per-request field may be a list too.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

from infra.engines.embedded.decoding import Decoding, Top
from infra.engines.embedded.live_model import LiveModel, Served
from infra.engines.embedded.sampling import DEFAULT_MAX_NEW_TOKENS, BadRequest, parse_sampling_params

UNSUPPORTED_FIELDS = (
    "stream",
    "image_data",
    "video_data",
    "audio_data",
    "input_embeds",
    "lora_path",
    "token_ids_logprob",
    "return_hidden_states",
    "session_params",
)


def parse_generate(body: Mapping[str, Any], model: LiveModel) -> tuple[list[Decoding], bool]:
    """The requests of one body, and whether it asked for a list. Raises: BadRequest."""
    for name in UNSUPPORTED_FIELDS:
        if body.get(name):
            raise BadRequest(f"{name} is not supported by the embedded engine: leave it out")
    prompts, many = _prompts(body)
    return [_decoding(prompt, body, index, many, model) for index, prompt in enumerate(prompts)], many


def _prompts(body: Mapping[str, Any]) -> tuple[list[Any], bool]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise BadRequest("give either text or input_ids")
    prompts: Any = text if ids is None else ids
    many = isinstance(text, list) or (isinstance(ids, list) and bool(ids) and isinstance(ids[0], list))
    if many and not prompts:
        raise BadRequest("the list of prompts is empty")
    return (prompts, True) if many else ([prompts], False)


def _decoding(prompt: Any, body: Mapping[str, Any], index: int, many: bool, model: LiveModel) -> Decoding:
    sampling = parse_sampling_params(_of(body, "sampling_params", index, many) or {})
    prompt_ids = _prompt_ids(prompt, model)
    return_logprob, start = _of(body, "return_logprob", index, many), _of(body, "logprob_start_len", index, many)
    start = -1 if start is None else start
    if type(start) is not int or not -1 <= start < len(prompt_ids):
        raise BadRequest(f"logprob_start_len must be -1 or a position in the prompt, got {start!r}")
    top = _of(body, "top_logprobs_num", index, many) or 0
    if type(top) is not int or not 0 <= top <= model.vocab_size:
        raise BadRequest(f"top_logprobs_num must be a whole number up to the vocabulary of {model.vocab_size}, got {top!r}")
    return Decoding(
        rid=_rid(body.get("rid"), index, many),
        prompt_ids=prompt_ids,
        sampling=sampling,
        max_new_tokens=_max_new_tokens(sampling.max_new_tokens, len(prompt_ids), model.context_length),
        return_logprob=bool(return_logprob),
        logprob_start_len=start,
        top_logprobs_num=top,
    )


def _of(body: Mapping[str, Any], name: str, index: int, many: bool) -> Any:
    value = body.get(name)
    if not (many and isinstance(value, list)):
        return value
    if index >= len(value):
        raise BadRequest(f"{name} has {len(value)} entries, fewer than there are prompts")
    return value[index]


def _rid(rid: Any, index: int, many: bool) -> str:
    if rid is None:
        return uuid.uuid4().hex
    if isinstance(rid, str):
        return f"{rid}_{index}" if many else rid
    if many and isinstance(rid, list) and index < len(rid) and isinstance(rid[index], str):
        return str(rid[index])
    raise BadRequest(f"rid must be a text, or one text a prompt, got {rid!r}")


def _prompt_ids(prompt: Any, model: LiveModel) -> list[int]:
    if isinstance(prompt, str):
        ids: list[int] = model.served.tokenizer.encode(prompt)
    elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
        ids = prompt
    else:
        raise BadRequest("text must be a string, and input_ids a list of whole numbers")
    if not ids:
        raise BadRequest("the prompt has no tokens")
    outside = next((token for token in ids if not 0 <= token < model.vocab_size), None)
    if outside is not None:
        raise BadRequest(f"token id {outside} is outside the vocabulary of {model.vocab_size}")
    return ids


def _max_new_tokens(asked: int | None, prompt_tokens: int, context_length: int) -> int:
    room = context_length - prompt_tokens
    if room < 1:
        raise BadRequest(
            f"the prompt has {prompt_tokens} tokens, which leaves no room in the context length of {context_length}"
        )
    if asked is not None and asked > room:
        raise BadRequest(
            f"{prompt_tokens} prompt tokens and max_new_tokens={asked} are more than the context length of {context_length}"
        )
    return min(DEFAULT_MAX_NEW_TOKENS, room) if asked is None else asked


def render(decoding: Decoding) -> dict[str, Any]:
    """The answer to one finished request."""
    served, reason = decoding.finished_under, decoding.finish_reason
    if served is None or reason is None:
        raise RuntimeError(f"request {decoding.rid} was rendered before it finished")
    meta: dict[str, Any] = {
        "id": decoding.rid,
        "finish_reason": reason,
        "prompt_tokens": len(decoding.prompt_ids),
        "completion_tokens": len(decoding.output_ids),
        "cached_tokens": 0,
        "weight_version": served.version,
        "weight_versions": [{"version": span.version, "start": span.start, "end": span.end} for span in decoding.spans],
        "num_retractions": decoding.retractions,
        "e2e_latency": decoding.finished_at - decoding.started_at,
    }
    if decoding.return_logprob:
        outputs = zip(decoding.output_logprobs, decoding.output_ids, strict=True)
        meta["output_token_logprobs"] = [_entry(logprob, token) for logprob, token in outputs]
        meta["input_token_logprobs"] = [_entry(logprob, token) for logprob, token in decoding.input_logprobs or []]
    if decoding.return_logprob and decoding.top_logprobs_num:
        meta["output_top_logprobs"] = [_entries(top) for top in decoding.output_top]
        meta["input_top_logprobs"] = [_entries(top) for top in decoding.input_top]
    return {"text": _text(decoding, served), "output_ids": decoding.output_ids, "meta_info": meta}


def _entry(logprob: float | None, token: int) -> list[float | int | None]:
    """SGLang's triple; JSON has no NaN, so a diverged model's log-probability is null."""
    return [logprob if logprob is not None and math.isfinite(logprob) else None, token, None]


def _entries(top: Top | None) -> list[list[float | int | None]] | None:
    return None if top is None else [_entry(logprob, token) for logprob, token in top]


def _text(decoding: Decoding, served: Served) -> str:
    """The output without what stopped it, unless `no_stop_trim`."""
    sampling, ids = decoding.sampling, decoding.output_ids
    matched = (decoding.finish_reason or {}).get("matched")
    if isinstance(matched, int) and not sampling.no_stop_trim:
        ids = ids[:-1]
    text = str(served.tokenizer.decode(ids, skip_special_tokens=sampling.skip_special_tokens))
    if isinstance(matched, str) and not sampling.no_stop_trim and matched in text:
        return text[: text.index(matched)]
    return text
