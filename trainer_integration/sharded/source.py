"""A live model is a source of pieces: what a rank holds is asked for when it is copied, never all at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trainer_integration.sharded.blocks import Part, Shape, Target
from trainer_integration.sharded.host import name_of
from trainer_integration.sharded.plan import Key, Piece

if TYPE_CHECKING:
    import torch


_NONE = re.compile(r"(?!)")


class Source(Protocol):
    """The live model, as one rank holds it."""

    def pieces(self) -> Sequence[Piece]:
        """All that this rank holds. Raises ConfigError naming a parameter that can't be staged, and why."""

    def layout(self, name: str, parts: Mapping[Part, Shape]) -> Sequence[Target]:
        """The tensors that parameter `name` becomes; a pure function, the same on every rank. None, and it is left out."""

    def values(self, keys: Sequence[Key]) -> Iterator[tuple[Key, torch.Tensor]]:
        """At least those of `keys`, as they are now."""


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter of this rank; `value` makes it when it is wanted."""

    shape: Shape
    dtype: torch.dtype
    value: Callable[[], torch.Tensor]


def pieces_of(held: Mapping[Key, Held], dtype: torch.dtype, kept: re.Pattern[str] = _NONE) -> list[Piece]:
    """Floating values are staged as `dtype`, but for those in float32 whose names are `kept`; others as they are.

    Empty ones are nobody's.
    """

    def kind_of(name: str, part: Held) -> torch.dtype:
        stays = not part.dtype.is_floating_point or (str(part.dtype) == "torch.float32" and kept.search(name))
        return part.dtype if stays else dtype

    found = [(key, part, kind_of(key[0], part)) for key, part in held.items() if 0 not in part.shape]
    return [Piece(name, part, one.shape, name_of(kind, name)) for (name, part), one, kind in found]


def values_of(held: Mapping[Key, Held], keys: Sequence[Key]) -> Iterator[tuple[Key, torch.Tensor]]:
    for key in keys:
        yield key, held[key].value()
