"""Real parts, each started by the test that wants it: what wants a Prefect has been given one, and boots none by accident."""

import os

os.environ.setdefault("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")  # read when Prefect is imported
