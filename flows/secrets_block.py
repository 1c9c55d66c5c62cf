"""Secrets for flows can lie in a Prefect block instead of the runner's environment; they are put there, and nowhere else.

`PINPOINT_SECRETS_BLOCK` names a Secret block whose value is a mapping of environment variables, such as AWS_ACCESS_KEY_ID,
WANDB_API_KEY or HF_TOKEN. Flow runs inherit the runner's environment. What is set there already stays.
"""

from __future__ import annotations

import os
import re
from typing import Any

from prefect.blocks.system import Secret

from infra.errors import ConfigError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


async def load_secrets(block: str) -> list[str]:
    """Puts the block's variables into this process's environment; gives the names of those that were not set.

    Raises ConfigError, which tells no value, for a block that is not there or no mapping of names to texts.
    """
    remedy = 'create a block of type Secret in Prefect\'s UI whose value is JSON such as {"AWS_ACCESS_KEY_ID": "..."}'
    try:
        loaded: Any = await Secret.aload(block)
    except ValueError:  # Prefect's for a block that is not there; its own text names the workspace
        raise ConfigError(f"there is no Secret block {block!r}: {remedy}") from None
    value = loaded.get()
    if not isinstance(value, dict) or not all(_usable(name, text) for name, text in value.items()):
        raise ConfigError(f"Secret block {block!r} is no mapping of environment variables to texts: {remedy}")
    new = [name for name in value if name not in os.environ]
    os.environ.update({name: value[name] for name in new})
    return new


def _usable(name: object, text: object) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None and isinstance(text, str)
