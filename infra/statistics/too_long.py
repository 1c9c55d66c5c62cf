"""Prompts that did not fit into the model's context: engines refuse them, and they are counted, never cut."""

from __future__ import annotations

import re
from collections.abc import Iterable

from infra.model import Sample, SampleOutcome

# How SGLang (managers/tokenizer_manager.py, managers/utils.py) and the embedded engine (infra/engines/embedded/wire.py) say so.
_SAID = re.compile(r"context length|exceeds the maximum allowed length", re.IGNORECASE)


def prompts_too_long(samples: Iterable[Sample]) -> int:
    """How many prompts an engine refused because they, with `max_new_tokens`, are longer than the context; not samples."""
    refused = {
        sample.problem_id for sample in samples if sample.outcome is SampleOutcome.INFRA_ERROR and _SAID.search(sample.detail)
    }
    return len(refused)
