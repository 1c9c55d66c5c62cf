"""Every byte of a file is digested once, as it passes by.

The digest of a safetensors file is that of its header followed by the digests of its tensors, in the order in which they lie
there: it covers every byte, and none is read or hashed twice for the sake of the tensors' own digests. xxh3-128
(https://xxhash.com) does 13.8 GB a CPU-second; it finds damage, not malice.
"""

from __future__ import annotations

from pathlib import Path

import xxhash

from infra.local_files import opened
from infra.model import FileEntry, TensorEntry
from infra.validation.headers import TensorSpan, read_header
from infra.validation.readers import CheckpointReader, LocalFolder

BLOCK_BYTES = 2**20


class FileDigest:
    """Fed with all bytes of the file at `path`, in order, it knows what the manifest says of it.

    A file that is not on this machine has a `reader` for its header, and its `size`.
    """

    def __init__(self, path: Path, reader: CheckpointReader | None = None, size: int | None = None) -> None:
        """Raises SnapshotInvalid for a safetensors file whose header does not account for its bytes."""
        self.name, self.size = path.name, path.stat().st_size if size is None else size
        reader = reader or LocalFolder(path.parent)
        spans = read_header(reader, path.name, self.size) if path.suffix == ".safetensors" else {}
        self._spans = sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end))
        self._file = xxhash.xxh3_128()
        self._tensor = xxhash.xxh3_128()
        self._at = 0
        self._next = 0
        self.tensors: dict[str, TensorEntry] = {}
        self._finish()

    def update(self, block: memoryview) -> None:
        end = self._at + len(block)
        position = self._at
        data = self._spans[0][1].begin if self._spans else end  # where the header ends; all of another kind of file
        if position < data:
            self._file.update(block[: data - position])
        while self._next < len(self._spans):
            span = self._spans[self._next][1]
            if span.begin >= end:
                break
            stop = min(span.end, end)
            self._tensor.update(block[max(span.begin, position) - self._at : stop - self._at])
            if stop < span.end:
                break
            self._add(span)
            position = stop
        self._at = end
        self._finish()

    @property
    def entry(self) -> FileEntry:
        """Of the bytes so far; its size is theirs."""
        return FileEntry(size=self._at, digest=self._file.hexdigest())

    def _add(self, span: TensorSpan) -> None:
        name, digest = self._spans[self._next][0], self._tensor.hexdigest()
        self.tensors[name] = TensorEntry(dtype=span.dtype, shape=span.shape, file=self.name, digest=digest)
        self._file.update(digest.encode())
        self._tensor = xxhash.xxh3_128()
        self._next += 1

    def _finish(self) -> None:
        """Tensors without bytes lie where no byte will come any more."""
        while self._next < len(self._spans) and self._spans[self._next][1].end <= self._at:
            self._add(self._spans[self._next][1])


def digest_file(path: Path) -> FileDigest:
    """Reads all of it; memory does not grow with the file."""
    digest, block = FileDigest(path), memoryview(bytearray(BLOCK_BYTES))
    with opened(path) as file:
        while n := file.readinto(block):
            digest.update(block[:n])
    return digest
