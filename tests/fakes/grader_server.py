"""A server that grades, a judge or a reward model, as a real HTTP server on loopback with faults as fields."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fakes.wire import Answer, Drop, Hang, WireServer


@dataclass(frozen=True, slots=True)
class Completion:
    """What an OpenAI-compatible server answers to a chat."""

    content: str | None

    def body(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.content}
        return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


class FakeGraderServer(WireServer):
    """`grades` makes an answer of a request's body; before that, each of `faults` is had once, in order."""

    def __init__(self, grades: Callable[[Any], Any]) -> None:
        super().__init__()
        self.grades = grades
        self.faults: list[Answer | type[Drop] | type[Hang]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.slow: threading.Event | None = None

    def answer(self, method: str, path: str, body: Any) -> Answer:
        with self.lock:
            fault = self.faults.pop(0) if self.faults else None
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.slow is not None:
                self.slow.wait(0.05)
            if isinstance(fault, Answer):
                return fault
            if fault is not None:
                raise fault
            made = self.grades(body)
            return Answer(made.body() if isinstance(made, Completion) else made)
        finally:
            with self.lock:
                self.at_once -= 1
