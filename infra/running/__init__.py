"""Every sample is asked of a pinned engine and carries the version that the engine itself put on it.

A response of a foreign version, or of two, is a PinViolation: the point has no number. A request that an engine could not
answer is tried on another engine of the same version, then becomes an `infra_error` sample, which is not a zero. One that
is itself at fault becomes that at once; if all of a dataset are, its prompts are what has to be mended.

    streaming ── asking ── load, custom_generate
        └─────── order, spool, sample_log, progress

Samples stream: what is in memory does not grow with their number, but for a few bytes each.
"""

from infra.running.asking import REQUEST_AT_FAULT as REQUEST_AT_FAULT
from infra.running.asking import REQUEST_TIMEOUT_S as REQUEST_TIMEOUT_S
from infra.running.asking import time_for as time_for
from infra.running.load import REQUESTS_PER_ENGINE as REQUESTS_PER_ENGINE
from infra.running.streaming import run_samples as run_samples
from infra.running.streaming import stream_samples as stream_samples
