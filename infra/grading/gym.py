"""A problem of `reasoning-gym` is graded by its family's own scorer."""

from __future__ import annotations

from infra.grading.scoring import Score
from infra.model import DatasetSpec, Problem, ReasoningGymSource
from infra.model.graders import ReasoningGymGrader


def reasoning_gym(settings: ReasoningGymGrader, spec: DatasetSpec) -> Score:
    import reasoning_gym as gym

    if not isinstance(spec.source, ReasoningGymSource):
        raise TypeError("the reasoning_gym grader needs a reasoning_gym source")
    scorer = gym.get_score_answer_fn(spec.source.reasoning_gym)

    def score(problem: Problem, answer: str) -> float:
        return float(scorer(answer=answer, entry=problem.entry))

    return score
