"""Untrusted text as text: whatever a model, an engine or a file says, it is read and never obeyed.

GitHub's markdown, which Prefect's UI renders, makes links even of bare addresses; in `escaped` text an invisible word joiner
(U+2060) keeps them apart, and a very long word may break (at U+200B), so that no table is wider than its page. A fenced block
is exact but for what is left out, which it says.
"""

from __future__ import annotations

import re

MAX_TEXT = 300
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|~$&]")
_REFERRED_TO = "\\<|&"  # whatever parser splits cells or looks for tags first
_AT_START = re.compile(r"^(\d{1,9})(?=\.(?:\s|$))|^(?=[-=:])")
_ADDRESS = re.compile(r"(?i)(https?|ftp|mailto|xmpp)(?=:)|(www)(?=\.)|(\S)(?=@)")
_LONG_WORD = re.compile(r"\S{20}(?=\S{8})")
_JOINER, _MAY_BREAK = "\u2060", "\u200b"
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL = re.compile(rf"[\x00-\x1f\x7f-\x9f{_BIDI}\u2028\u2029\ud800-\udfff]+")
_HIDDEN = re.compile(
    rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}\u200b-\u200d\u2028\u2029\u2060-\u2064\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_STACKED = re.compile(r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})[\u0300-\u036f]+")
WIDTH, MOST_CODE = 84, 1000
MOST_LINES = 30


def plain(text: str) -> str:
    """Untrusted text as one short line without control characters, for the terminal and table cells."""
    line = _CONTROL.sub(" ", text[: 4 * MAX_TEXT]).strip()
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"


def escaped(text: str) -> str:
    """Untrusted text for markdown: every character that could begin markup is escaped, or is a character reference."""
    line = _ADDRESS.sub(lambda found: found.group() + _JOINER, plain(text))
    line = _LONG_WORD.sub(lambda found: found.group() + _MAY_BREAK, line)
    return _AT_START.sub(r"\1\\", _MARKUP.sub(_as_text, line))


def _as_text(found: re.Match[str]) -> str:
    character = found.group()
    return f"&#{ord(character)};" if character in _REFERRED_TO else f"\\{character}"


def code(text: str) -> str:
    """Untrusted text as a code span, to be copied; not for a cell of a markdown table."""
    line = _CONTROL.sub(" ", text[:MOST_CODE]).strip()
    mark = "`" * (_longest_run(line) + 1)
    return f"{mark} {line} {mark}" if "`" in line else f"{mark}{line or ' '}{mark}"


def fenced(text: str, most: int) -> str:
    """Untrusted text as a block, its lines kept and long ones wrapped; of what is longer, its beginning and its end."""
    shown = "\n".join(line for line in _lines(_shortened(text, most)))
    mark = "`" * max(3, _longest_run(shown) + 1)
    return f"{mark}\n{shown}\n{mark}"


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end]}\n… {len(text) - most:,} of {len(text):,} characters are left out …\n{text[-end:]}"


def _lines(text: str) -> list[str]:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _STACKED.sub(r"\1", _HIDDEN.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text))
    lines = [piece for line in text.split("\n") for piece in _wrapped(line.expandtabs(4))]
    if len(lines) <= MOST_LINES:
        return lines
    end = MOST_LINES // 3
    return [*lines[: MOST_LINES - end], f"… {len(lines) - MOST_LINES:,} lines are left out …", *lines[-end:]]


def _wrapped(line: str) -> list[str]:
    pieces = []
    while len(line) > WIDTH:
        cut = line.rfind(" ", 1, WIDTH) + 1 or WIDTH
        pieces.append(line[:cut])
        line = line[cut:]
    return [*pieces, line]


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
