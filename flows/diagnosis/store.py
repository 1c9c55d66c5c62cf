"""The store does what correctness rests on: reads give what was written, and of several creators one succeeds."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flows.diagnosis.finding import Finding
from infra.errors import AlreadyExists, StoreDenied
from infra.store import PROBES, Store

CREATORS = 8
UPLOAD_BYTES = 6 << 20  # more than one part of a multipart upload, of which S3 wants at least 5 MiB


def check_store(url: str) -> Sequence[Finding]:
    """Leaves nothing behind, and touches only a folder of its own. Raises StoreError for a store that can't be used at all."""
    store = Store(url)
    folder = f"{PROBES}/doctor-{uuid.uuid4().hex}"
    try:
        findings = [_read_and_write(store, folder), _create_once(store, folder), _upload(store, folder)]
    finally:
        store.delete(folder)
    return findings


def _read_and_write(store: Store, folder: str) -> Finding:
    content = os.urandom(64)
    for text in (b"first", content):
        store.write(f"{folder}/object", text)
    listed = store.list(folder)
    if store.read(f"{folder}/object") != content or listed != {f"{folder}/object": len(content)}:
        return Finding(
            piece="store: read and write",
            verdict="fault",
            found=f"{store.url} does not give back what was just written, or does not list it",
            remedy="use a store with strong read-after-write consistency; no cache may stand before it",
        )
    store.delete(f"{folder}/object")
    return Finding(piece="store: read and write", verdict="ok", found=store.url)


def _create_once(store: Store, folder: str) -> Finding:
    """Ledger, records and leases rest on it: an S3 server that ignores `If-None-Match` lets everybody succeed."""

    def create(number: int) -> bool:
        try:
            store.create(f"{folder}/once", str(number).encode())
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(CREATORS) as pool:
        succeeded = sum(pool.map(create, range(CREATORS)))
    if succeeded != 1:
        return Finding(
            piece="store: conditional create",
            verdict="fault",
            found=f"{succeeded} of {CREATORS} simultaneous creators of one object succeeded",
            remedy="use a store that honours If-None-Match on PutObject: AWS S3, MinIO, SeaweedFS and Ceph do",
        )
    return Finding(piece="store: conditional create", verdict="ok", found=f"1 of {CREATORS} creators succeeded")


def _upload(store: Store, folder: str) -> Finding:
    with tempfile.TemporaryDirectory(prefix="pinpoint-doctor-") as place:
        path = Path(place, "part")
        path.write_bytes(os.urandom(UPLOAD_BYTES))
        store.upload(path, f"{folder}/upload")
        same = store.read_range(f"{folder}/upload", UPLOAD_BYTES - 64, UPLOAD_BYTES) == path.read_bytes()[-64:]
    left = _open_uploads(store, folder)
    if not same or left:
        return Finding(
            piece="store: upload",
            verdict="fault",
            found="an uploaded file can't be read by range" if not same else f"{left} multipart uploads stay open",
            remedy="snapshots are uploaded in parts and read by range: use a store that does both",
        )
    return Finding(piece="store: upload", verdict="ok", found=f"{UPLOAD_BYTES >> 20} MiB in parts, read by range")


def _open_uploads(store: Store, folder: str) -> int:
    try:
        return len(store.open_uploads(folder))
    except StoreDenied:  # a sweep needs the right to list them; that is said by `pinpoint reclaim`
        return 0
