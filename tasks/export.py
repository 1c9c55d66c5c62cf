"""Weights become a snapshot only when every byte is in the store and accounted for by its manifest.

A staged folder is sent to the prefix that its flow owns; a retry goes on where the last try stopped. Somebody's checkpoint is
validated and digested where it lies; nothing of it is copied, and nothing of it is ours to delete.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from prefect import task

from infra.concurrency import gather_all
from infra.errors import AdapterInvalid, ExportFailed, ServiceUnreachable, StoreDenied, StoreError
from infra.export import Sent, complete, send, send_part, send_part_there
from infra.fleet.nodes import on_host, places
from infra.foreign import describe_once, describe_place_once
from infra.leases import owner_of
from infra.model import BaseModelRef, EvalRequest, Manifest, SnapshotRef, StagedPart
from infra.snapshot import assemble, describe
from infra.store import Store, split_location
from infra.validation.adapters import adapter_files, base_of, examine_adapter, is_adapter
from infra.validation.examination import validate_checkpoint
from infra.validation.readers import CheckpointReader, LocalFolder, StorePrefix
from tasks.retrying import RETRIED

logger = logging.getLogger(__name__)


@task(name="export", task_run_name="export step {request.point.step}", **RETRIED)
async def export(request: EvalRequest, prefix: str) -> SnapshotRef:
    """Has no time of its own: it goes on while bytes move, within the point's deadline.

    Raises SnapshotError for a folder that is no complete checkpoint, ExportFailed if the store does not take it.
    """
    parts = await asyncio.to_thread(places, request.source)
    if len(parts) > 1 or parts[0].host:
        return await _exporting(request, prefix, _send_parts(request, parts, prefix))
    if "://" in request.source.path:
        return await asyncio.to_thread(_stored, request)
    folder = await asyncio.to_thread(Path(request.source.path).absolute)
    files, base = await asyncio.to_thread(_examined, LocalFolder(folder), request)
    if not request.source.staged:
        described = await asyncio.to_thread(_described, folder, files, request)
        manifest = assemble(described.files, described.tensors, request.point, base)
        return SnapshotRef(point=request.point, location=folder.as_uri(), manifest=manifest, owned=False)
    return await _exporting(request, prefix, _send(request, folder, files, base, prefix))


async def _exporting(request: EvalRequest, prefix: str, sending: Coroutine[Any, Any, SnapshotRef]) -> SnapshotRef:
    try:
        return await sending
    except StoreDenied:
        raise
    except ServiceUnreachable as error:
        raise ExportFailed(f"{request.point.name} is staged on another host, which can't be reached: {error}") from error
    except StoreError as error:
        raise ExportFailed(f"snapshot of {request.point.name} did not reach {request.store_url}/{prefix}: {error}") from error


def _stored(request: EvalRequest) -> SnapshotRef:
    """Somebody's checkpoint in object storage: read where it lies, and fetched and verified by the nodes that need it."""
    place = StorePrefix(*split_location(request.source.path))
    if is_adapter(place):
        raise AdapterInvalid(f"adapter {place.location} is in object storage: copy it to a folder", subject=place.location)
    described = describe_place_once(Store(request.store_url), place, _valid(place, request), request.point)
    return SnapshotRef(point=request.point, location=place.location, manifest=described, owned=False)


def _examined(reader: CheckpointReader, request: EvalRequest) -> tuple[list[str], BaseModelRef | None]:
    """The files to export, after the full validation: before any engine is touched.

    An adapter is exported alone, and names its base by digest. See docs/checkpoints.md.
    """
    if not is_adapter(reader):
        return _valid(reader, request), None
    base = base_of(reader, request.source.base)
    if not isinstance(base, LocalFolder):
        message = f"base {base.location} of adapter {reader.location} is no local folder: fetch it"
        raise AdapterInvalid(message, subject=base.location)
    base_files = _valid(base, request)
    files = adapter_files(examine_adapter(reader, base))
    manifest = describe_once(Store(request.store_url), base.folder, base_files, request.point)
    return files, BaseModelRef(location=base.folder.absolute().as_uri(), snapshot_digest=manifest.snapshot_digest)


def _described(folder: Path, files: list[str], request: EvalRequest) -> Manifest:
    """Of a checkpoint that engines will prove tensor by tensor a note is enough; what a black box gets is read again."""
    if request.black_box is not None:
        return describe(folder, files, request.point)
    return describe_once(Store(request.store_url), folder, files, request.point)


def _valid(reader: CheckpointReader, request: EvalRequest) -> list[str]:
    needs_chat_template = any(dataset.apply_chat_template for dataset in request.suite.datasets)
    trusted = request.trust_remote_code
    return validate_checkpoint(reader, needs_chat_template=needs_chat_template, trust_remote_code=trusted)


async def _send(request: EvalRequest, folder: Path, files: list[str], base: BaseModelRef | None, prefix: str) -> SnapshotRef:
    store, point = Store(request.store_url), request.point
    sent = await send(store, folder, files, prefix)
    manifest = assemble(sent.files, sent.tensors, point, base)
    await complete(store, prefix, manifest, owner_of(point))
    logger.info("exported %s: %d of %d bytes sent to %s", point.name, sent.n_bytes, manifest.n_bytes, store.url_of(prefix))
    return SnapshotRef(point=point, location=store.url_of(prefix), manifest=manifest, owned=True)


async def _send_parts(request: EvalRequest, parts: tuple[StagedPart, ...], prefix: str) -> SnapshotRef:
    """Each host sends its own part; the whole is validated where it then is, before the manifest makes it a snapshot."""
    store, point = Store(request.store_url), request.point

    async def send_one(part: StagedPart) -> Sent:
        which = {"with_metadata": part is parts[0], "of_several": len(parts) > 1}
        if not part.host:
            return await send_part(store, part, prefix, **which)
        return await on_host(part.host, partial(send_part_there, store.url, part, prefix, **which))

    sent = Sent.of(await gather_all(send_one(part) for part in parts))
    _, base = await asyncio.to_thread(_examined, StorePrefix(store, prefix), request)
    manifest = assemble(sent.files, sent.tensors, point, base)
    await complete(store, prefix, manifest, owner_of(point))
    hosts = ", ".join(part.host or socket.gethostname() for part in parts)
    logger.info("exported %s: %d bytes sent from %s to %s", point.name, sent.n_bytes, hosts, store.url_of(prefix))
    return SnapshotRef(point=point, location=store.url_of(prefix), manifest=manifest, owned=True)
