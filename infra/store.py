"""Object storage where a write is whole or absent, and a conditional create has exactly one winner.

`file://` folders and `s3://` buckets behave alike. Locally, fsspec's own exclusive create lets several writers win and
its overwrites can be read half-done, so creation goes through a hard link and replacement through a rename.
Credentials and endpoint of S3 come from the standard `AWS_*` variables.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import fsspec

from infra import local_files
from infra.errors import AlreadyExists, ConfigError, StoreDenied, StoreError, StoreUnreachable

BLOCK_BYTES = 16 * 2**20
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 120  # a large multipart completion takes long, and s3fs sends it twice if it gives up early
_DENIED = re.compile(r"credential|denied|forbidden|signature|access key|\b403\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Where an S3 server is and with which credentials; what is None comes from the environment."""

    endpoint_url: str | None = None
    key: str | None = None
    secret: str | None = field(default=None, repr=False)


def path_of(url: str) -> Path:
    """The local path of a file:// URL, with its percent-encoding undone."""
    return Path(unquote(urlsplit(url).path))


def split_location(location: str) -> tuple[Store, str]:
    """The store and key of a folder given by URL."""
    root, _, key = location.rpartition("/")
    return Store(root), unquote(key) if root.startswith("file://") else key


class Store:
    """One root in object storage; keys are relative, with '/' between parts. All methods block."""

    def __init__(self, url: str, access: S3Access | None = None) -> None:
        """`access` overrides the environment.

        Raises ConfigError for a URL that is neither file:// nor s3://bucket, or an S3 store without s3fs.
        """
        self.url = url.rstrip("/")
        scheme, _, rest = self.url.partition("://")
        if scheme not in ("file", "s3") or not rest.strip("/"):
            raise ConfigError(f"store {url!r}: use file:///folder or s3://bucket/prefix")
        self.is_local = scheme == "file"
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url, **({} if self.is_local else _s3_options(access)))
        except ImportError:
            raise ConfigError(f"store {url!r} needs the package s3fs: install pinpoint-trainer[s3]") from None
        if self.is_local:
            self._root = str(path_of(self.url))

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def url_of(self, key: str) -> str:
        return f"{self.url}/{key}"

    def local_path(self, key: str) -> Path | None:
        """Where `key` can be read in place; None unless the store is a local folder."""
        return Path(self._path(key)) if self.is_local else None

    def check(self) -> None:
        """Writes and deletes a small object, so that an unusable store is found before work begins."""
        probe = f".probe-{uuid.uuid4().hex}"
        self.write(probe, b"")
        self.delete(probe)

    def read(self, key: str) -> bytes:
        """Raises FileNotFoundError if there is no such object."""
        with self._translated(key):
            data: bytes = self._fs.cat_file(self._path(key))
            return data

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object, fewer where it ends before; raises FileNotFoundError if there is none."""
        if end <= start:
            return b""
        with self._translated(key):
            data: bytes = self._fs.cat_file(self._path(key), start=start, end=end)
            return data

    def write(self, key: str, data: bytes) -> None:
        """Creates or replaces; a reader sees the old object or the new one."""
        with self._translated(key):
            if self.is_local:
                local_files.write(Path(self._path(key)), data)
            else:
                self._fs.pipe_file(self._path(key), data)

    def create(self, key: str, data: bytes) -> None:
        """Writes an object that must not exist yet; of several concurrent creators exactly one succeeds.

        Raises AlreadyExists for the others. A retry inside the S3 client can meet its own first write: a caller to whom
        that matters puts something unique into `data` and reads it back.
        """
        with self._translated(key):
            if self.is_local:
                if not local_files.create(Path(self._path(key)), data):
                    raise AlreadyExists(self.url_of(key))
                return
            try:
                self._fs.pipe_file(self._path(key), data, mode="create")
            except FileExistsError:
                raise AlreadyExists(self.url_of(key)) from None
            except OSError as error:  # how s3fs reports a 412 of a server that does not name the condition
                if error.errno != errno.EINVAL or not self._fs.exists(self._path(key)):
                    raise
                raise AlreadyExists(self.url_of(key)) from None

    def exists(self, key: str) -> bool:
        with self._translated(key):
            return bool(self._fs.isfile(self._path(key)))

    def list(self, prefix: str) -> dict[str, int]:
        """Keys of all objects below the folder `prefix` ("" is the root), with their sizes in bytes."""
        with self._translated(prefix):
            if self.is_local:
                return local_files.sizes(Path(self._path("")), Path(self._path(prefix)))
            try:
                found: dict[str, dict[str, Any]] = self._fs.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                return {}
            start = len(self._path("").rstrip("/")) + 1
            return {path[start:]: int(i["size"]) for path, i in sorted(found.items()) if i["type"] == "file"}

    def written(self, prefix: str) -> dict[str, float]:
        """When each object below the folder `prefix` was last written: seconds on the store's own clock."""
        with self._translated(prefix):
            if self.is_local:
                root = Path(self._path(""))
                found = {}
                for key in local_files.sizes(root, Path(self._path(prefix))):
                    with suppress(FileNotFoundError):
                        found[key] = (root / key).stat().st_mtime
                return found
            try:
                objects: dict[str, dict[str, Any]] = self._fs.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                return {}
            start = len(self._path("").rstrip("/")) + 1
            return {path[start:]: i["LastModified"].timestamp() for path, i in objects.items() if i["type"] == "file"}

    def clock(self) -> float:
        """Now, on the clock that `written` is counted on; to the second on S3."""
        probe = f".clock-{uuid.uuid4().hex}"
        try:
            self.write(probe, b"")
            return self.written(probe)[probe]
        finally:
            self.delete(probe)

    def open_uploads(self, prefix: str) -> tuple[tuple[str, str], ...]:
        """Half-done multipart uploads below the folder `prefix`: (key, upload id). A local store has none."""
        if self.is_local:
            return ()
        bucket, _, root = self._path(prefix).partition("/")
        with self._translated(prefix):
            answer = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{root}/")
        start = len(self._path("").partition("/")[2].rstrip("/")) + 1
        return tuple((upload["Key"][start:], upload["UploadId"]) for upload in answer.get("Uploads") or ())

    def abort_uploads(self, prefix: str) -> int:
        """Ends the half-done multipart uploads below the folder `prefix` and frees their parts; says how many."""
        uploads = self.open_uploads(prefix)
        for key, upload in uploads:
            bucket, _, name = self._path(key).partition("/")
            with self._translated(key), suppress(FileNotFoundError):
                self._fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=name, UploadId=upload)
        return len(uploads)

    def delete(self, prefix: str) -> None:
        """Deletes the object or the whole folder; deleting what is not there is not an error."""
        with self._translated(prefix):
            path = self._path(prefix)
            if self.is_local:
                local_files.delete(Path(path))
                return
            keys = [self._path(key) for key in self.list(prefix)]
            if keys:
                self._fs.rm(keys)

    def upload(self, source: Path, key: str, stopping: threading.Event | None = None) -> None:
        """Sends a local file in blocks of `BLOCK_BYTES`; memory does not grow with the file. It appears whole or not.

        Raises Stopped, with nothing left behind, soon after `stopping` is set by another thread.
        """
        with self._translated(key), source.open("rb") as reader:
            if self.is_local:
                with local_files.replacing(Path(self._path(key))) as copy:
                    copy_blocks(reader, copy, stopping)
                return
            writer = self._fs.open(self._path(key), "wb", block_size=BLOCK_BYTES)
            try:
                copy_blocks(reader, writer, stopping)
            except BaseException:
                writer.discard()
                writer.closed = True  # closing, also by its finaliser, would make an object of what was sent so far
                raise
            writer.close()

    def download(self, key: str, target: Path) -> None:
        """Fetches an object to a local file, in blocks; `target` appears whole."""
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with (
                self._translated(key),
                self._fs.open(self._path(key), "rb", block_size=BLOCK_BYTES) as reader,
                partial.open("wb") as writer,
            ):
                shutil.copyfileobj(reader, writer, BLOCK_BYTES)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _path(self, key: str) -> str:
        if ".." in key.split("/") or key.startswith("/"):
            raise ValueError(f"key {key!r} leaves the store {self.url}")
        return f"{self._root}/{key}" if key else self._root

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """Turns what the file system or the S3 client raises into errors that name the store and the remedy."""
        try:
            yield
        except (StoreError, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and "bucket" in str(error).lower():
                raise StoreError(f"store {self.url}: the bucket does not exist; create it, or correct the URL") from None
            raise
        except PermissionError as error:
            raise self._denied(error) from error
        except (OSError, _botocore_error()) as error:
            raise self._failed(key, error) from error

    def _denied(self, error: Exception) -> StoreDenied:
        remedy = "check the folder's permissions" if self.is_local else "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
        return StoreDenied(f"store {self.url} refuses access ({_line(error)}): {remedy}")

    def _failed(self, key: str, error: Exception) -> StoreError:
        name = type(error).__name__
        if any(word in name for word in ("Connect", "Timeout", "Endpoint")):
            endpoint = os.environ.get("AWS_ENDPOINT_URL", "AWS")
            return StoreUnreachable(f"store {self.url} does not answer at {endpoint}: check s3_endpoint_url and network")
        if "Credentials" in name or (not self.is_local and _DENIED.search(str(error))):
            return self._denied(error)
        return StoreError(f"store {self.url}, object {key!r}: {name}: {_line(error)}")


class Stopped(Exception):
    """An upload ended because it was asked to."""


def copy_blocks(reader: BinaryIO, writer: BinaryIO, stopping: threading.Event | None) -> None:
    """Copies in blocks of `BLOCK_BYTES`; raises Stopped between two of them."""
    while block := reader.read(BLOCK_BYTES):
        if stopping is not None and stopping.is_set():
            raise Stopped
        writer.write(block)


def _s3_options(access: S3Access | None) -> dict[str, Any]:
    config = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "retries": {"max_attempts": 3, "mode": "standard"},
    }
    options = {"config_kwargs": config, "use_listings_cache": False, "skip_instance_cache": True}
    given = access or S3Access()
    named = {"endpoint_url": given.endpoint_url, "key": given.key, "secret": given.secret}
    return {**options, **{name: value for name, value in named.items() if value}}


def _botocore_error() -> type[Exception]:
    """botocore's base error; a local store must not pay for that import."""
    import sys

    module = sys.modules.get("botocore.exceptions")
    return module.BotoCoreError if module else OSError


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
