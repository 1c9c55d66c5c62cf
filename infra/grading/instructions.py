"""Whether a response follows IFEval's verifiable instructions, as `lm-eval` checks them.

Sources: Zhou et al., arXiv:2311.07911; `lm_eval.tasks.ifeval`, of the package `lm-eval[ifeval]`. It has the only copy of
these checks on PyPI that is kept up: docs/suites.md says what else there is.
"""

from __future__ import annotations

from typing import Any

from infra.errors import ConfigError
from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem
from infra.model.graders import InstructionsGrader

NEEDED = "grader 'instructions' needs {}: pip install 'lm-eval[ifeval]', then python -m nltk.downloader punkt_tab"


def instructions(settings: InstructionsGrader, spec: DatasetSpec) -> Score:
    """Raises ConfigError where the package, or the sentence data that it would download by itself, is missing."""
    checks = _checks()
    follow = checks.test_instruction_following_strict if settings.strict else checks.test_instruction_following_loose

    def score(problem: Problem, answer: str) -> float:
        row: Any = problem.entry
        asked = checks.InputExample(
            key=0,
            instruction_id_list=row["instruction_id_list"],
            prompt=str(row.get("prompt", problem.prompt)),
            kwargs=row["kwargs"],
        )
        followed = follow(asked, answer).follow_instruction_list
        return sum(followed) / len(followed) if settings.share else float(all(followed))

    return score


def _checks() -> Any:
    try:
        import nltk

        nltk.data.find("tokenizers/punkt_tab")
        import langdetect
        from lm_eval.tasks.ifeval import utils
    except ImportError as error:
        raise ConfigError(NEEDED.format(error.name)) from None
    except LookupError:
        raise ConfigError(NEEDED.format("NLTK's punkt_tab")) from None
    langdetect.DetectorFactory.seed = 0  # it draws by chance, and the same response must have the same grade
    return utils
