"""What the settings of a configuration must be for a task."""

from typing import Any

import ml_collections


def check_settings(config: ml_collections.ConfigDict, needed: Any, foreign: Any) -> None:
    """Raises a `ValueError` for settings that a task lacks, or does not have.

    Args:
        config: the settings.
        needed, foreign: the names of those that must be given, or unset, by section.
    """
    for wanted, sections in (("given", needed), ("unset", foreign)):
        for section, names in sections.items():
            for name in names:
                value = config[section][name]
                if bool(value) != (wanted == "given"):
                    received = f"Received: {name}={value!r}."
                    raise ValueError(f"`config.{section}.{name}` must be {wanted} for task={config.task}. {received}")
