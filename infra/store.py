"""Object storage where a write is whole or absent, and a conditional create has exactly one winner.

`file://` folders and `s3://` buckets behave alike; whatever fails is said with the store's name and the remedy.
Credentials and endpoint of S3 come from the standard `AWS_*` variables.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import fsspec

from infra import local_files, s3_objects
from infra.errors import AlreadyExists, ConfigError, StoreDenied, StoreError, StoreFull, StoreUnreachable
from infra.s3_objects import S3Objects
from infra.transfer import Transfer

PROBES = ".probes"
LITTER_S = 3600.0
_DENIED = re.compile(r"credential|denied|forbidden|signature|access key|\b403\b", re.IGNORECASE)
_FULL = re.compile(r"insufficient.?storage|storage.?full|no space|quota|\b507\b", re.IGNORECASE)
_UNREACHABLE = ("Connect", "Timeout", "Endpoint", "HTTPClient", "ServerDisconnected", "ClientOSError", "ClientPayload")


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
        if self.is_local:
            self._root = str(path_of(self.url))
            return
        given = access or S3Access()
        opened = s3_objects.options(endpoint_url=given.endpoint_url, key=given.key, secret=given.secret)
        try:
            fs, self._root = fsspec.core.url_to_fs(self.url, **opened)
        except ImportError:
            raise ConfigError(f"store {url!r} needs the package s3fs: install pinpoint-trainer[s3]") from None
        self._s3 = S3Objects(fs)

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def url_of(self, key: str) -> str:
        return f"{self.url}/{key}"

    def key_of(self, location: str) -> str | None:
        """The key of what is at `location`, a URL or a local path, or None if it is not in this store."""
        if "://" in location and not location.startswith("file://"):
            return location.removeprefix(f"{self.url}/") if location.startswith(f"{self.url}/") else None
        path = path_of(location) if location.startswith("file://") else Path(location)
        root = Path(os.path.realpath(self._root)) if self.is_local else None
        real = Path(os.path.realpath(path))  # unlike `resolve`, it takes a link that leads to itself for a path
        return str(real.relative_to(root)) if root and real.is_relative_to(root) else None

    def local_path(self, key: str) -> Path | None:
        """Where `key` can be read in place; None unless the store is a local folder."""
        return Path(self._path(key)) if self.is_local else None

    def check(self) -> None:
        """Writes and deletes a small object, so that an unusable store is found before work begins."""
        probe = f"{PROBES}/{uuid.uuid4().hex}"
        self.write(probe, b"")
        self.delete(probe)

    def read(self, key: str) -> bytes:
        """Raises FileNotFoundError if there is no such object."""
        with self._translated(key):
            path = self._path(key)
            return Path(path).read_bytes() if self.is_local else self._s3.read(path)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object, fewer where it ends before; raises FileNotFoundError if there is none."""
        if end <= start:
            return b""
        with self._translated(key):
            path = self._path(key)
            return local_files.read_range(Path(path), start, end) if self.is_local else self._s3.read_range(path, start, end)

    def write(self, key: str, data: bytes) -> None:
        """Creates or replaces; a reader sees the old object or the new one."""
        with self._translated(key):
            if self.is_local:
                local_files.write(Path(self._path(key)), data)
            else:
                self._s3.write(self._path(key), data)

    def create(self, key: str, data: bytes) -> None:
        """Writes an object that must not exist yet; of several concurrent creators exactly one succeeds.

        Raises AlreadyExists for the others. A retry inside the S3 client can meet its own first write: a caller to whom
        that matters puts something unique into `data` and reads it back.
        """
        with self._translated(key):
            path = self._path(key)
            if not (local_files.create(Path(path), data) if self.is_local else self._s3.create(path, data)):
                raise AlreadyExists(self.url_of(key))

    def exists(self, key: str) -> bool:
        with self._translated(key):
            path = self._path(key)
            return Path(path).is_file() if self.is_local else self._s3.exists(path)

    def list(self, prefix: str) -> dict[str, int]:
        """Keys of all objects below the folder `prefix` ("" is the root), with their sizes in bytes."""
        with self._translated(prefix):
            if self.is_local:
                return local_files.sizes(Path(self._path("")), Path(self._path(prefix)))
            return {self._key(path): int(info["size"]) for path, info in self._s3.below(self._path(prefix)).items()}

    def written(self, prefix: str) -> dict[str, float]:
        """When each object below the folder `prefix` was last written: seconds on the store's own clock."""
        with self._translated(prefix):
            if not self.is_local:
                objects = self._s3.below(self._path(prefix))
                return {self._key(path): info["LastModified"].timestamp() for path, info in objects.items()}
            root = Path(self._path(""))
            found = {}
            for key in local_files.sizes(root, Path(self._path(prefix))):
                with suppress(FileNotFoundError):
                    found[key] = (root / key).stat().st_mtime
            return found

    def clock(self) -> float:
        """Now, on the clock that `written` is counted on; to the second on S3."""
        probe = f"{PROBES}/{uuid.uuid4().hex}"
        try:
            self.write(probe, b"")
            return self.written(probe)[probe]
        finally:
            self.delete(probe)

    def tidy(self) -> None:
        """Deletes what processes that were killed left of their own: probes, and half-written files of a local store."""
        now = self.clock()
        for probe, at in self.written(PROBES).items():
            if now - at > LITTER_S:
                self.delete(probe)
        if self.is_local:
            with self._translated(""):
                local_files.delete_stale_temporaries(Path(self._path("")), LITTER_S)

    def open_uploads(self, prefix: str) -> tuple[tuple[str, str], ...]:
        """Half-done multipart uploads below the folder `prefix`: (key, upload id). A local store has none."""
        if self.is_local:
            return ()
        with self._translated(prefix):
            return tuple((self._key(path), upload) for path, upload in self._s3.uploads(f"{self._path(prefix)}/"))

    def abort_uploads(self, prefix: str) -> int:
        """Ends the half-done multipart uploads below the folder `prefix` and frees their parts; says how many."""
        uploads = self.open_uploads(prefix)
        for key, upload in uploads:
            with self._translated(key):
                self._s3.abort(self._path(key), upload)
        return len(uploads)

    def delete(self, prefix: str) -> None:
        """Deletes the object or the whole folder; deleting what is not there is not an error."""
        with self._translated(prefix):
            path = self._path(prefix)
            if self.is_local:
                local_files.delete(Path(path))
            else:
                self._s3.delete(list(self._s3.below(path)))

    def upload(self, source: Path, key: str, transfer: Transfer | None = None) -> None:
        """Sends a local file; memory does not grow with it. It appears whole, and durable, or not at all.

        Raises Stopped soon after the transfer is asked to stop and StoreStalled when it no longer moves; of either, and of
        any failure, nothing is left behind.
        """
        with self._translated(key):
            if self.is_local:
                local_files.copy(source, Path(self._path(key)), transfer or Transfer())
                return
            with local_files.opened(source):  # as long as it is sent, so that nobody fills its memory again
                self._s3.upload(source, self._path(key), transfer or Transfer())

    def download(self, key: str, target: Path) -> None:
        """Fetches an object to a local file, in blocks; `target` appears whole."""
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with self._translated(key):
                path = self._path(key)
                if self.is_local:
                    local_files.copy(Path(path), partial, Transfer())
                else:
                    self._s3.download(path, partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _path(self, key: str) -> str:
        if ".." in key.split("/") or key.startswith("/"):
            raise ValueError(f"key {key!r} leaves the store {self.url}")
        return f"{self._root}/{key}" if key else self._root

    def _key(self, path: str) -> str:
        return path[len(self._root.rstrip("/")) + 1 :]

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
        except _client_errors() as error:
            raise self._failed(key, error) from error

    def _denied(self, error: Exception) -> StoreDenied:
        remedy = "check the folder's permissions" if self.is_local else "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
        return StoreDenied(f"store {self.url} refuses access ({_line(error)}): {remedy}")

    def _failed(self, key: str, error: Exception) -> StoreError:
        name = type(error).__name__
        if any(word in name for word in _UNREACHABLE):
            endpoint = os.environ.get("AWS_ENDPOINT_URL", "AWS")
            return StoreUnreachable(f"store {self.url} does not answer at {endpoint}: check s3_endpoint_url and network")
        if "Credentials" in name or (not self.is_local and _DENIED.search(str(error))):
            return self._denied(error)
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (not self.is_local and _FULL.search(str(error))):
            return StoreFull(f"store {self.url} is full: object {key!r} did not fit; free space, or set another store_url")
        return StoreError(f"store {self.url}, object {key!r}: {name}: {_line(error)}")


def _client_errors() -> tuple[type[Exception], ...]:
    """Base errors of the system and, if they are loaded, of the S3 client: a local store must not pay for that import."""
    import sys

    named = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"))
    return (OSError, *(getattr(sys.modules[module], name) for module, name in named if module in sys.modules))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
