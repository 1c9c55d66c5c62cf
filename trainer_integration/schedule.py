"""Which steps are due: every so many, and always the last; a trainer that jumps over several gets one point for them.

One that goes back to an earlier step trains anew from there: what was due on its way is due again.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A step to evaluate, and the earlier due steps that it stands for."""

    step: int
    missed: tuple[int, ...]


class Schedule:
    """Remembers the last step it was shown; steps need not start at 0."""

    def __init__(self, every: int, *, start: int = 0) -> None:
        """`start` is the step that training begins after: multiples of `every` beyond it are due."""
        if every < 1:
            raise ConfigError(f"eval interval {every} must be at least 1")
        self.every = every
        self.begun = False
        self._seen = start
        self._evaluated: int | None = None

    def due(self, step: int, *, final: bool = False) -> Due | None:
        """None if `step` is not due. The same step is due once, even if it is shown again as the final one."""
        if step < self._seen:
            self._seen, self._evaluated = step - 1, None
        self.begun = True
        multiples = range(self._seen // self.every * self.every + self.every, step + 1, self.every)
        self._seen = step
        if not (multiples or final) or step == self._evaluated:
            return None
        self._evaluated = step
        return Due(step=step, missed=tuple(m for m in multiples if m != step))

    def mark(self, step: int) -> None:
        """Says that `step` has a point already, the baseline for one."""
        self.begun = True
        self._seen, self._evaluated = max(self._seen, step), step

    def reopen(self, step: int) -> None:
        """Says that `step` got no measurement: shown again as the final one, it is due again."""
        if self._evaluated == step:
            self._evaluated = None
