"""What was finished is not asked again: samples are in the store soon after they are, for a later try at the same thing.

The same thing is the same weight version, content, engines' configuration, problems, sampling and grader: a log's key is a
digest over all of them, so nobody finds another's. Each segment is one object, whole or absent; a process that was killed loses
what it finished since its last one, which is a hundredth of its time, and never more than five seconds' worth.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import orjson
import xxhash

from infra.errors import StoreError
from infra.functions import source_of
from infra.grading.versions import version_of
from infra.model import DatasetSpec, EngineRef, EvalPoint, LiveFleet, Pinned, Problem, Sample, SampleOutcome
from infra.model.suites import OPERATIONAL
from infra.records import point_prefix
from infra.running.spool import Spool, sample_in
from infra.store import Store

logger = logging.getLogger(__name__)
FORMAT = "1"
SHARE_AT_RISK = 0.01
SOONEST_S, LATEST_S = 0.1, 5.0
SEGMENT_BYTES = 16 * 2**20
LAST_WRITE_S = 10.0


@dataclass(slots=True, kw_only=True)
class SampleLog:
    """The log of one dataset at one point; each writer has segments of its own."""

    store: Store
    prefix: str
    token: str
    writer: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    segments: int = 0

    @classmethod
    def of(cls, store: Store, pinned: Pinned, suite: str, spec: DatasetSpec, problems: Sequence[Problem]) -> SampleLog:
        key = log_key(pinned, spec, problems)
        prefix = f"{logs_prefix(pinned.point, suite)}/{spec.name}/{key}"
        return cls(store=store, prefix=prefix, token=pinned.token)

    def samples(self) -> Iterator[Sample]:
        """All that was graded or could not be, of the pinned version alone; what nobody answered is asked again.

        Of a store that can't be read nothing is known: all is asked.
        """
        try:
            keys = sorted(self.store.list(self.prefix))
        except StoreError as error:
            logger.warning("%s can't be read, all samples are asked: %s", self.prefix, error)
            return
        for key in keys:
            try:
                lines = self.store.read(key).splitlines()
            except (StoreError, FileNotFoundError) as error:
                logger.warning("%s can't be read, its samples are asked again: %s", key, error)
                continue
            yield from filter(self._usable, _samples_in(lines, key))

    def _usable(self, sample: Sample) -> bool:
        return set(sample.weight_versions) == {self.token} and sample.outcome is not SampleOutcome.INFRA_ERROR

    def append(self, lines: bytes) -> None:
        self.store.write(f"{self.prefix}/{self.writer}-{self.segments:06d}.jsonl", lines)
        self.segments += 1

    async def follow(self, spool: Spool, start: int) -> None:
        """Writes what is added to the spool from `start` on, until it is cancelled, and then the rest."""
        began, written = time.monotonic(), start
        try:
            while True:
                await asyncio.sleep(min(LATEST_S, max(SOONEST_S, SHARE_AT_RISK * (time.monotonic() - began))))
                written = await self._write(spool, written)
        finally:
            with anyio.move_on_after(LAST_WRITE_S, shield=True):
                await self._write(spool, written)

    async def _write(self, spool: Spool, written: int) -> int:
        """A store that does not take it now is asked again later: the samples are in the spool."""
        end = spool.file_bytes
        while written < end:
            lines = spool.read(written, min(end, written + SEGMENT_BYTES))
            lines = lines[: lines.rfind(b"\n") + 1] or spool.read(written, end)
            try:
                await asyncio.to_thread(self.append, lines)
            except StoreError as error:
                logger.warning("%s: samples are not in the log yet: %s", self.prefix, error)
                return written
            written += len(lines)
        return written


def _samples_in(lines: Sequence[bytes], key: str) -> Iterator[Sample]:
    for line in lines:
        try:
            yield sample_in(line)
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s holds a line that is no sample, which is asked again: %r", key, error)


def log_key(pinned: Pinned, spec: DatasetSpec, problems: Sequence[Problem]) -> str:
    """Raises ConfigError for a grader or generate function that is not there."""
    content = "" if isinstance(pinned, LiveFleet) else pinned.snapshot.manifest.snapshot_digest
    engines = sorted({_configuration(engine) for engine in pinned.engines if isinstance(engine, EngineRef)})
    digest = xxhash.xxh3_128()
    for part in (FORMAT, pinned.token, pinned.cache_key, content, *engines):
        digest.update(orjson.dumps(part))
    where = {"source": True} if isinstance(spec.source, str) else {}
    digest.update(spec.model_dump_json(exclude={**where, **OPERATIONAL}).encode())
    digest.update(version_of(spec.grader).encode())
    if spec.generate is not None:
        digest.update(source_of(spec.generate, "generate").read_bytes())
    for problem in problems:
        digest.update(repr(problem).encode(errors="backslashreplace"))
    return digest.hexdigest()


def _configuration(engine: EngineRef) -> str:
    """Of an engine of which nobody knows how it holds a snapshot, only the same process is the same."""
    return engine.configuration or f"{engine.base_url} {engine.pid}"


def logs_prefix(point: EvalPoint, suite: str) -> str:
    return f"{point_prefix(point, suite)}/log"


def forget_logs(store: Store, point: EvalPoint, suite: str) -> None:
    """For a point that has its record: nobody will go on with it."""
    with suppress(FileNotFoundError):
        try:
            store.delete(logs_prefix(point, suite))
        except StoreError as error:
            logger.warning("the logs of %s, suite %s are still there: %s", point.name, suite, error)
