"""Whether processes of others are over."""

from __future__ import annotations

import os
import select


def ended(pid: int, within_s: float = 0.0) -> bool:
    """Whether the process is over, or is within that time: all of its threads, and all that it held.

    A killed process of several threads is called a zombie as soon as its first thread has gone; its parent, and so this,
    still finds it there until the last has. One whose parent has not looked yet is over.
    """
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], within_s)[0])
    finally:
        os.close(watched)
