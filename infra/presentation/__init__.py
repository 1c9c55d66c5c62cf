"""Records as people read them: the same rows for the terminal and for the Prefect UI; nothing in them can inject markup."""

from infra.presentation.point_page import report_markdown
from infra.presentation.rows import history_rows, score_rows
from infra.presentation.run_pages import comparison_key, comparison_markdown, curve_key, curve_markdown, history_key
from infra.presentation.texts import MAX_TEXT, code, escaped, fenced, plain
from infra.presentation.transcripts import Transcript, chosen, transcripts_markdown
from infra.wording import score_text

__all__ = [
    "MAX_TEXT",
    "Transcript",
    "chosen",
    "code",
    "comparison_key",
    "comparison_markdown",
    "curve_key",
    "curve_markdown",
    "escaped",
    "fenced",
    "history_key",
    "history_rows",
    "plain",
    "report_markdown",
    "score_rows",
    "score_text",
    "transcripts_markdown",
]
