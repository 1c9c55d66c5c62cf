"""A limit of this process that the kernel keeps, taken back afterwards."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """The kernel refuses this process a larger file (EFBIG), as a full disk would refuse it (ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
