"""Untrusted text as a page can show it: nothing in it is hidden, moves its neighbours, or makes the page grow without bound."""

from __future__ import annotations

import re
from typing import Any

MOST_CELL = 2_400
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Control characters, direction marks, what has no width and broken Unicode by their number, as `⟨U+202E⟩`."""
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text.replace("\r\n", "\n"))


def bounded(text: str, most: int) -> str:
    """The beginning and the end, where an answer usually is, and how much is left out between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n⟨… {len(text) - 2 * half:,} characters left out …⟩\n{text[-half:]}"


def shown(value: Any) -> Any:
    """What the template prints goes through here (jinja's `finalize`), but for what it has escaped itself."""
    return visible(bounded(value, MOST_CELL)) if isinstance(value, str) and not hasattr(value, "__html__") else value
