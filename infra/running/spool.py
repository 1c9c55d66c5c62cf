"""The samples of a dataset are in a file that ends with its process; in memory there are a few bytes of each.

They come in the order in which they were finished and are read in that of their problems.
"""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from types import TracebackType
from typing import Any, Self, overload

import orjson

from infra.model import Problem, Sample, SampleOutcome

ABSENT = -1


class Spool(Sequence[Sample]):
    """`file_bytes` and `read` give what was added, as JSON lines. Use as a context manager."""

    def __init__(self, problems: Sequence[Problem], samples_per_prompt: int) -> None:
        self._positions = {problem.id: position for position, problem in enumerate(problems)}
        self._each = samples_per_prompt
        places = len(problems) * samples_per_prompt
        self._starts, self._lengths = array("q", [ABSENT]) * places, array("l", [0]) * places
        self._count = self.file_bytes = 0
        self._file = tempfile.TemporaryFile(prefix="pinpoint-samples-", buffering=0)  # noqa: SIM115 - closed with the spool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def has(self, problem_id: str, index: int) -> bool:
        return self._starts[self._place(problem_id, index)] != ABSENT

    def wants(self, sample: Sample) -> bool:
        """Whether it is of these problems, and not here yet."""
        return (
            sample.problem_id in self._positions
            and 0 <= sample.index < self._each
            and not self.has(sample.problem_id, sample.index)
        )

    def add(self, sample: Sample) -> None:
        place, line = self._place(sample.problem_id, sample.index), line_of(sample)
        self._count += self._starts[place] == ABSENT
        self._starts[place], self._lengths[place] = self.file_bytes, len(line)
        self._file.write(line)
        self.file_bytes += len(line)

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._file.fileno(), end - start, start)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        for start, length in zip(self._starts, self._lengths, strict=True):
            if start != ABSENT:
                yield sample_in(self.read(start, start + length))

    @overload
    def __getitem__(self, place: int) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> list[Sample]: ...
    def __getitem__(self, place: int | slice) -> Sample | list[Sample]:
        if isinstance(place, slice):
            return list(self)[place]
        wanted = place if place >= 0 else self._count + place
        found = next(islice(iter(self), wanted, None), None) if wanted >= 0 else None
        if found is None:
            raise IndexError(place)
        return found

    def _place(self, problem_id: str, index: int) -> int:
        return self._positions[problem_id] * self._each + index


def line_of(sample: Sample) -> bytes:
    try:
        return orjson.dumps(sample, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a surrogate pair, which only the standard library's JSON can write
        return json.dumps(asdict(sample)).encode() + b"\n"


def sample_in(line: bytes) -> Sample:
    """Raises ValueError, KeyError or TypeError for a line that is none."""
    try:
        fields: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = json.loads(line)
    fields["outcome"] = SampleOutcome(fields["outcome"])
    fields["weight_versions"] = tuple(fields["weight_versions"])
    return Sample(**fields)
