"""Processes that fork from one that has imported what they need: some hundred of them would else import it each.

The process to fork from is one for all, so that all that tests want of it is named here.
"""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["__main__", "tests.services.dying_owner", "s3fs", "torch", "torch.distributed", "transformers", "megatron.core"]
)
HANGS_S = 240.0  # the first waits for all of these imports, too
