"""What a model, an engine, a file or a name may say to break a page; and what of a page a reader of markdown would render."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

HOSTILE = (
    "a | b | c",
    "`code` ``` ~~~",
    "<script>window.pwned = 1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<img src=leak.png alt=unquoted>",
    '<img src="http://evil.example/leak.png">',
    "</code></pre></td></table><h1>owned</h1>",
    "[click](javascript:window.pwned=1) <javascript:window.pwned=1>",
    "![x](http://evil.example/leak.png) [a]: http://evil.example/",
    "http://evil.example/x www.evil.example me@evil.example",
    "line\n# heading\r\n| row |\n\n```\n<b>out</b>\n```\n- item\n1. item\n> quote\n===\n---",
    "# heading",
    "- item",
    "1. item",
    "====",
    "    indented",
    "\x1b[2J\x1b]8;;http://evil.example\x07",
    "\u202egnp.exe \u200f\u061c\u2066mixed",
    "\ud800 \u0000 \u2028 \u2029",
    "Z" + "\u0301" * 500,
    "~~~\n**bold** __x__ _y_ &lt;b&gt; $$x$$ \\`\\<b>",
    "العربية हिन्दी 日本語 🙂",
    "``````````\n</details>",
    "```mermaid\ngraph TD\n```",
    "x" * 1_000_000,
    "\\" * 400,
)
_READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def rendered(markdown: str) -> list[Token]:
    """Every token, of blocks and of what is inside them."""
    return [part for token in _READER.parse(markdown) for part in (token, *(token.children or ()))]


def text_of(markdown: str) -> str:
    """What a reader sees, if it is text and nothing else; without the invisible characters that keep it one."""
    tokens = [token for token in rendered(markdown) if token.type not in ("paragraph_open", "paragraph_close", "inline")]
    assert {token.type for token in tokens} <= {"text", "text_special"}, [token.type for token in tokens]
    return re.sub("[\u2060\u200b]", "", "".join(token.content for token in tokens))
