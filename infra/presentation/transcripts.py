"""One right, one wrong and one truncated response of a point, to be read: always the first of each, so that points compare.

The first is by the order of the suite's datasets and of their problems: at another point it is the same problem, unless what
became of it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from infra.model import Sample, SampleOutcome
from infra.presentation.texts import code, escaped, fenced

Kind = Literal["right", "wrong", "truncated"]
KINDS: tuple[Kind, ...] = ("right", "wrong", "truncated")
MOST_LOOKED_AT = 2000
MOST_PROMPT, MOST_RESPONSE, MOST_ANSWER, INLINE = 600, 900, 200, 60
_RIGHT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A sample that stands for its kind."""

    kind: Kind
    dataset: str
    sample: Sample


def kind_of(sample: Sample) -> Kind | None:
    """None for a sample that could not be graded: it is neither right nor wrong."""
    if sample.outcome is SampleOutcome.TRUNCATED:
        return "truncated"
    if sample.reward is None:
        return None
    return "right" if sample.reward >= _RIGHT else "wrong"


def chosen(datasets: Mapping[str, Iterable[Sample]]) -> list[Transcript]:
    """The first sample of each kind among the first `MOST_LOOKED_AT` of each dataset; no more are read than that takes."""
    found: dict[Kind, Transcript] = {}
    for dataset, samples in datasets.items():
        if len(found) == len(KINDS):
            break
        for sample in islice(samples, MOST_LOOKED_AT):
            kind = kind_of(sample)
            if kind is not None and kind not in found:
                found[kind] = Transcript(kind=kind, dataset=dataset, sample=sample)
                if len(found) == len(KINDS):
                    break
    return [found[kind] for kind in KINDS if kind in found]


def transcripts_markdown(transcripts: Iterable[Transcript], missing: str = "") -> str:
    """`missing` says why there are none, where the samples could not be read."""
    shown = list(transcripts)
    absent = [kind for kind in KINDS if kind not in {transcript.kind for transcript in shown}]
    none = missing or f"No response was {' or '.join(absent)}, of the first {MOST_LOOKED_AT:,} of each dataset."
    return "\n\n".join([*map(_markdown, shown), *([escaped(none)] if absent else [])])


def _markdown(transcript: Transcript) -> str:
    sample = transcript.sample
    reward = "no reward" if sample.reward is None else f"reward {sample.reward:g}"
    facts = f"problem {sample.problem_id}, sample {sample.index}: {reward}, {sample.completion_tokens} tokens"
    short = 0 < len(sample.answer) <= INLINE and sample.answer.isprintable()
    parts = [
        f"### {transcript.kind.capitalize()}: {escaped(transcript.dataset)}",
        f"{escaped(facts)}, expected {code(sample.answer)}" if short else escaped(facts),
        _part("Asked", sample.prompt, MOST_PROMPT),
        _part("Response", sample.response, MOST_RESPONSE),
        _part("Expected", sample.answer, MOST_ANSWER) if sample.answer and not short else "",
    ]
    if sample.detail:
        parts.append(f"Grader: {escaped(sample.detail)}")
    return "\n\n".join(part for part in parts if part)


def _part(name: str, text: str, most: int) -> str:
    length = f" ({len(text):,} characters, shortened)" if len(text) > most else ""
    return f"**{name}**{length}\n\n{fenced(text, most)}" if text else f"**{name}**: nothing"
