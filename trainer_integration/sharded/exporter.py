"""A model that many ranks hold is exported by all of them together; training waits for one copy of what a rank holds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from infra.errors import StagingFailed
from infra.staging import TTL
from infra.validation.headers import TensorSpan
from infra.validation.layout import CONFIG, INDEX, Contents, raise_it
from infra.validation.readers import LocalFolder
from infra.validation.tensors import check_names, check_tensors
from trainer_integration.sharded.files import SHARD_BYTES, OneFile
from trainer_integration.sharded.metadata import ModelFiles, index_of
from trainer_integration.sharded.parts import StagedPart, StagedParts
from trainer_integration.sharded.plan import Inventory, Plan, make_plan
from trainer_integration.sharded.ranks import Ranks
from trainer_integration.sharded.source import Source
from trainer_integration.sharded.spare import Spare
from trainer_integration.sharded.stage import Staging

logger = logging.getLogger(__name__)


class StagedExporter:
    """An `Exporter` of a model that any number of ranks hold together. Collective: every rank makes it, and calls it.

    `prepare` settles who copies what, once; the first export calls it if nobody has before. `parts` says where the last export
    lies. Host memory: the staged model once and, a rank, three chunks of 32 MiB and the largest parameter that it casts,
    merges, sends or receives. A subclass that stages no whole model has a `config` of another name, all in `one` file, or both.
    """

    config: str = CONFIG
    one: OneFile | None = None

    def __init__(
        self, source: Source, files: ModelFiles, *, dtype: str, ranks: Ranks | None = None, shard_bytes: int = SHARD_BYTES
    ) -> None:
        """`dtype` is torch's name of what is staged, `bfloat16` for one; a file has up to `shard_bytes`, or one tensor."""
        self.source, self.files, self.dtype, self.shard_bytes = source, files, dtype, shard_bytes
        self.ranks = ranks or Ranks.of_job()
        self.plan: Plan | None = None
        self.metadata: Mapping[str, bytes] = {}
        self.parts: StagedParts | None = None
        self._spares: Spare | None = None
        self._spare_folder: Path | None = None

    def reuse_memory(self, spare_folder: Path) -> Self:
        """Keeps the memory of one staged snapshot a node for good, and fills it again: from the third export on, several times
        faster. `spare_folder` is on the file system of the staging area, the same on every rank, and of this exporter alone.
        """
        self._spare_folder = spare_folder
        return self

    def prepare(self) -> Plan:
        """Raises StagingFailed on all ranks, naming the parameter that nobody knows or the tensor that is not the config's."""
        inventory = self.ranks.together(lambda: Inventory(self.ranks.node, tuple(self.source.pieces())))
        inventories = self.ranks.exchange(inventory)
        self.plan = self.ranks.together(partial(self._planned, inventories))
        return self.plan

    def __call__(self, folder: Path) -> None:
        """Raises StagingFailed on all ranks; then nothing is left in `folder`, on any node."""
        plan = self.plan or self.prepare()
        ttl, spare = self._ttl_beside(folder, plan), self._spare(plan)
        metadata, config = self.metadata, self.config
        staging = Staging(self.ranks, plan, self.source, folder, metadata=metadata, config=config, ttl=ttl, spare=spare)
        try:
            self.ranks.together(staging.open)
            self.ranks.together(staging.copy)
            self.ranks.together(staging.finish)
        except StagingFailed:
            staging.remove()
            self.ranks.exchange(None)  # no rank returns before all nodes are clean
            raise
        except BaseException:
            staging.remove()
            raise
        self.parts = _parts(plan, folder)

    def _ttl_beside(self, folder: Path, plan: Plan) -> str:
        """So that what other nodes stage is freed in time even if nobody comes for it, as it is on the first."""
        if len(set(plan.nodes)) == 1:
            return ""
        text = ""
        if self.ranks.rank == 0:
            with contextlib.suppress(OSError, ValueError):
                text = (folder.parent / TTL).read_text()
        return str(self.ranks.broadcast(text))

    def _spare(self, plan: Plan) -> Spare | None:
        """What is to be filled again is settled when all ranks return; where nothing can be, the export goes on without."""
        if self._spare_folder is None:
            return None
        spare = self.ranks.together(partial(self._own_spare, self._spare_folder, plan))
        self.ranks.together(spare.forget)
        return spare

    def _own_spare(self, folder: Path, plan: Plan) -> Spare:
        if self._spares is None:
            neighbours = plan.ranks_on(self.ranks.node)
            self._spares = Spare(folder, leads=neighbours[0] == self.ranks.rank, neighbours=len(neighbours) > 1)
        self._spares.free(plan.files_on(self.ranks.node))
        return self._spares

    def _planned(self, inventories: Sequence[Inventory]) -> Plan:
        plan = make_plan(inventories, self.source.layout, self.shard_bytes, self.one)
        if self.ranks.rank == 0:  # the others have the same plan
            self.metadata = self._metadata(plan)
        return plan

    def _metadata(self, plan: Plan) -> dict[str, bytes]:
        """What lies beside the weights. Raises SnapshotInvalid if the tensors are not those that it describes."""
        refuse_unlike_config(plan, self.files, self.dtype)
        metadata = self.files.rendered(self.dtype)
        if len(plan.files) > 1:
            names = {name: file.name for file in plan.files for name in file.begins}
            metadata[INDEX] = index_of(names, plan.n_bytes)
        return metadata


def refuse_unlike_config(plan: Plan, files: ModelFiles, dtype: str) -> None:
    """Raises SnapshotInvalid if the tensors are not, by name and shape, those of the config's model."""
    promise = files.promise(dtype)
    contents = Contents(reader=LocalFolder(Path("the live model")), entries={}, spans=spans_of(plan))
    if promise.architecture is not None:
        check_tensors(contents, promise.architecture, raise_it)
        return
    logger.warning("pinpoint: tensors of the export were not compared with the config's: %s", promise.unknown)
    check_names(contents, promise.values, raise_it)


def spans_of(plan: Plan) -> dict[str, TensorSpan]:
    """Of each tensor its dtype and shape; where it will lie is left open."""
    dtypes, targets = plan.dtypes, plan.targets.items()
    return {name: TensorSpan(dtype=dtypes[name], shape=target.shape, begin=0, end=0) for name, target in targets}


def _parts(plan: Plan, folder: Path) -> StagedParts:
    """A node without files has no part; rank 0's has the metadata, whatever else."""
    files = {node: tuple(file.name for file in plan.files_on(node)) for node in dict.fromkeys(plan.nodes)}
    parts = [
        StagedPart(host=node, folder=folder, shards=names) for node, names in files.items() if names or node == plan.nodes[0]
    ]
    return StagedParts(parts=tuple(parts), n_bytes=plan.n_bytes)
