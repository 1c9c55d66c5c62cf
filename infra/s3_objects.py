"""Objects in an S3 bucket behave like those of a local store: whole or absent, replaced at once, created by exactly one.

Through s3fs, on its own event loop. Every call has a bound on its whole time, retries included, so that a server which
accepts and never answers is noticed; an upload is bounded by its progress instead. Throttling and 5xx are tried again by
botocore, with growing and random pauses. Errors are those of s3fs and botocore: `infra.store` puts them into words.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fsspec.callbacks import Callback

from infra.transfer import Transfer

logger = logging.getLogger(__name__)
T = TypeVar("T")
PART_BYTES = 16 * 2**20
PARTS_AT_ONCE = 2
CALL_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 120  # a large multipart completion takes long, and is sent twice if it is given up early
TRIES = 5  # of botocore, with pauses of about 0.5, 1, 2 and 4 s, twice over: a short burst of 503 passes unnoticed
LOOK_S = 0.05
DOWNLOAD_TRIES = 3


def options(**named: str | None) -> dict[str, Any]:
    """What the file system is opened with; a name without a value is left to the environment."""
    config = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "retries": {"max_attempts": TRIES, "mode": "standard"},
        "max_pool_connections": 32,
    }
    opened = {"config_kwargs": config, "use_listings_cache": False, "skip_instance_cache": True}
    return {**opened, **{name: value for name, value in named.items() if value}}


class S3Objects:
    """One bucket's objects, by path `bucket/key`."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        self.fs.retries = 2  # botocore has done the waiting; s3fs repeats what broke off while a body was read

    def read(self, path: str) -> bytes:
        data: bytes = self.fs.cat_file(path, timeout=CALL_TIMEOUT_S)
        return data

    def read_range(self, path: str, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(path, start=start, end=end, timeout=CALL_TIMEOUT_S)
        return data

    def write(self, path: str, data: bytes) -> None:
        self.fs.pipe_file(path, data, timeout=CALL_TIMEOUT_S)

    def create(self, path: str, data: bytes) -> bool:
        """False for all but one of several concurrent creators."""
        try:
            self.fs.pipe_file(path, data, mode="create", timeout=CALL_TIMEOUT_S)
        except FileExistsError:
            return False
        except OSError as error:  # how s3fs reports a 412 of a server that does not name the condition
            if error.errno != errno.EINVAL or not self.exists(path):
                raise
            return False
        return True

    def exists(self, path: str) -> bool:
        return bool(self.fs.isfile(path, timeout=CALL_TIMEOUT_S))

    def below(self, path: str) -> dict[str, dict[str, Any]]:
        """What is known of every object at or below `path`, by its path."""
        try:
            found: dict[str, dict[str, Any]] = self.fs.find(path, detail=True, timeout=CALL_TIMEOUT_S)
        except FileNotFoundError:
            return {}
        return {at: info for at, info in sorted(found.items()) if info["type"] == "file"}

    def delete(self, paths: list[str]) -> None:
        if paths:
            self.fs.rm(paths, timeout=CALL_TIMEOUT_S)

    def uploads(self, path: str) -> tuple[tuple[str, str], ...]:
        """Half-done multipart uploads of objects whose path begins with `path`: (path, upload id)."""
        bucket, _, key = path.partition("/")
        found: list[tuple[str, str]] = []
        after: dict[str, str] = {}
        while True:
            answer = self.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key, timeout=CALL_TIMEOUT_S, **after)
            found += [(f"{bucket}/{upload['Key']}", upload["UploadId"]) for upload in answer.get("Uploads") or ()]
            if not answer.get("IsTruncated"):
                return tuple(found)
            after = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}

    def abort(self, path: str, upload: str) -> None:
        """Frees the parts of a half-done upload; one that is gone is fine."""
        bucket, _, key = path.partition("/")
        with suppress(FileNotFoundError):
            self.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload, timeout=CALL_TIMEOUT_S)

    def upload(self, source: Path, path: str, transfer: Transfer) -> None:
        """In parts of `PART_BYTES`, `PARTS_AT_ONCE` of them in memory; one that ends early leaves no parts behind."""
        sending = self._begin(
            lambda: self.fs._put_file(
                str(source), path, callback=_Moving(transfer), chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
        )
        try:
            _look_through(source, transfer, sending)
            _wait(sending, transfer)
        except BaseException:
            sending.cancel()
            wait([sending], CALL_TIMEOUT_S)
            self._abort_all(path)
            raise

    def _abort_all(self, path: str) -> None:
        """What can't be cleaned up now is for the sweep, and never hides why the upload ended."""
        try:
            for at, upload in self.uploads(path):
                if at == path:
                    self.abort(at, upload)
        except Exception as error:  # noqa: BLE001
            logger.warning("parts of %s are left for the next sweep: %s", path, error)

    def download(self, path: str, target: Path) -> None:
        for left in reversed(range(DOWNLOAD_TRIES)):
            try:
                self.fs.get_file(path, str(target), chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            except FileNotFoundError:
                raise
            except Exception:  # an answer that broke off, which s3fs does not repeat here
                if not left:
                    raise
                logger.warning("%s is fetched again", path, exc_info=True)
            else:
                return

    def _begin(self, coroutine: Callable[[], Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine(), self.fs.loop)


class _Moving(Callback):  # type: ignore[misc]
    """Tells the transfer of every part that has arrived."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__()
        self.transfer = transfer

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        self.transfer.moved(inc)


def _look_through(source: Path, transfer: Transfer, sending: Future[Any]) -> None:
    """Shows the file's bytes to who wants to see them, while s3fs sends them from its own thread."""
    if transfer.seen is None:
        return
    block = memoryview(bytearray(2**20))
    with source.open("rb", buffering=0) as reader:
        while n := reader.readinto(block):
            if sending.done() and sending.exception():
                return
            transfer.go_on()
            transfer.look(block[:n])


def _wait(sending: Future[T], transfer: Transfer) -> T:
    while not sending.done():
        transfer.go_on()
        wait([sending], LOOK_S)
    return sending.result()
