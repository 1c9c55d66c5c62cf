"""A process gets a tmpfs of its own at a path that others see differently, as on another node. Needs root.

Source: unshare(2), mount(2).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
possible = os.geteuid() == 0


def mount_own(folder: Path, size: str) -> None:
    """From now on `folder` is, for this process alone, an empty tmpfs of `size`, `1m` for one. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir(parents=True, exist_ok=True)
    _checked(libc.unshare(CLONE_NEWNS))
    _checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _checked(libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()))


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
