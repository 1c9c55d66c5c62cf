"""A tensor of the staged folder is cut into blocks that cover each of its elements exactly once, or it is refused.

A block is a copy of a run of one part of one parameter. All that tensor, pipeline and expert parallelism, FSDP and a fused
projection do to a weight can be said in blocks, so nothing has to be gathered, and nothing is computed while training waits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.errors import ShapeMismatch

Part = tuple[int, ...]  # which part of a parameter: two ranks with the same part of it hold the same values
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """`rows` runs of `width` elements that lie together in `part` from element `start` on.

    The first goes to element `offset` of the tensor, each next one `stride` elements further.
    """

    part: Part
    start: int
    rows: int
    width: int
    offset: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tensor of the staged folder, made of the parameter `source`."""

    name: str
    shape: Shape
    source: str
    blocks: tuple[Block, ...]


def columns(shape: Shape) -> int:
    """Elements in a row, which is all that the first index leaves open; 1 for a vector."""
    return math.prod(shape[1:])


def rows_of(part: Part, shape: Shape, start: int, rows: int, to: int) -> Block:
    """Rows [start, start + rows) of a part of `shape`, to the rows from `to` on of a tensor with as many columns."""
    width = columns(shape)
    return Block(part, start * width, 1, rows * width, to * width, rows * width)


def stacked(parts: Mapping[Part, Shape]) -> list[Block]:
    """Parts one below the other, in their order."""
    blocks, row = list[Block](), 0
    for part, shape in parts.items():
        height = shape[0] if shape else 1
        blocks.append(rows_of(part, shape, 0, height, row))
        row += height
    return blocks


def side_by_side(parts: Mapping[Part, Shape]) -> list[Block]:
    """Parts beside each other, in their order; each has all rows."""
    total = sum(columns(shape) for shape in parts.values())
    blocks, column = list[Block](), 0
    for part, shape in parts.items():
        blocks.append(Block(part, 0, shape[0], columns(shape), column, total))
        column += columns(shape)
    return blocks


def refuse_gaps(target: Target, parts: Mapping[Part, Shape]) -> None:
    """Raises ShapeMismatch unless the blocks lie inside their parts and cover the tensor once."""
    for block in target.blocks:
        if block.start < 0 or block.start + block.rows * block.width > math.prod(parts[block.part]):
            raise _uneven(target, f"a block reaches out of part {block.part} of shape {list(parts[block.part])}")
    bands = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    for row, height, column, width in _rectangles(target.blocks, columns(target.shape) or 1):
        bands[row, height].append((column, width))
    for spans in bands.values():
        _refuse_uneven(target, spans, columns(target.shape))
    _refuse_uneven(target, bands, target.shape[0] if target.shape else 1)


def _rectangles(blocks: Iterable[Block], width: int) -> Iterable[tuple[int, int, int, int]]:
    """Row, height, column and width of each."""
    for block in blocks:
        if block.stride == block.width and block.rows * block.width % width == 0:
            yield block.offset // width, block.rows * block.width // width, block.offset % width, width
        else:
            yield block.offset // width, block.rows, block.offset % width, block.width


def _refuse_uneven(target: Target, spans: Iterable[tuple[int, int]], end: int) -> None:
    reached = 0
    for start, length in sorted(spans):
        if start != reached:
            raise _uneven(target, f"its parts {'overlap' if start < reached else 'leave a gap'} at {min(start, reached)}")
        reached += length
    if reached != end:
        raise _uneven(target, f"its parts make up {reached} of {end}")


def _uneven(target: Target, problem: str) -> ShapeMismatch:
    message = f"tensor {target.name} of shape {list(target.shape)} can't be put together from {target.source}: {problem}"
    return ShapeMismatch(f"{message}; is this the config of this very model?", subject=target.name)


def whole(name: str, parts: Mapping[Part, Shape], source: str) -> Target:
    """A tensor that each holder has all of."""
    ((part, shape),) = list(parts.items())[:1]
    return Target(name=name, shape=shape, source=source, blocks=tuple(stacked({part: shape})))
