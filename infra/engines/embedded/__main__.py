"""Run the engine as a process: `python -m infra.engines.embedded --help`."""

from __future__ import annotations

import sys

from infra.engines.embedded.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
