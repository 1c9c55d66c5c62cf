"""A stop text ends an answer and not the reasoning before it: one that an engine met inside a think block is gone past.

An engine can't be told so, and it costs nothing where no stop text is met while the model thinks. Where one is, the engine is
asked to go on from there: first up to the end of the block, then with the stop texts again. All turns are one response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from infra.engines.client import Generation
from infra.grading.answers import opened_by_prompt, without_thinking
from infra.model import DatasetSpec, Sampling

Turn = Callable[[str, Sampling, str], Awaitable[Generation]]  # prompt, sampling, and what tells this request from others


async def response_to(prompt: str, spec: DatasetSpec, sampling: Sampling, turn: Turn) -> Generation:
    """At most `max_new_tokens` in all. Raises what `turn` raises."""
    last = await turn(prompt, sampling, "")
    if spec.think_markers is None or spec.stop_in_thinking or last.matched not in sampling.stop:
        return last
    turns, text = [last], last.text
    while goes_on(prompt, text, last.matched, spec.think_markers, sampling):
        text += last.matched
        left = sampling.max_new_tokens - sum(turn.completion_tokens for turn in turns)
        if left < 1:
            last = replace(last, finish="length", matched="")
            break
        thinking = is_thinking(prompt, text, spec.think_markers)
        stop = (spec.think_markers[1],) if thinking else sampling.stop
        update = {"stop": stop, "max_new_tokens": left}
        last = await turn(prompt + text, sampling.model_copy(update=update), f"past{len(turns)}")
        turns.append(last)
        text += last.text
    versions = tuple(version for each in turns for version in each.weight_versions)
    return replace(last, text=text, weight_versions=versions, completion_tokens=sum(t.completion_tokens for t in turns))


def goes_on(prompt: str, text: str, matched: str, markers: tuple[str, str], sampling: Sampling) -> bool:
    """Whether what ended the last turn is no end of the response."""
    if not matched:
        return False
    return is_thinking(prompt, text, markers) and (matched == markers[1] or matched in sampling.stop)


def is_thinking(prompt: str, response: str, markers: tuple[str, str]) -> bool:
    """Whether what came after `response` would be reasoning."""
    end = "\0"
    return end not in without_thinking(opened_by_prompt(prompt, response, markers) + end, markers)
