"""Old names of settings, in configuration files, on the command line and in work folders."""

from typing import Any

import ml_collections

from tf_sparse_attention.deprecation import renamed
from trainers.configs.base import RENAMED


def apply_renamed_settings(config: ml_collections.ConfigDict) -> None:
    """Moves the settings of a configuration that are given under an old name to the new one, with a warning.

    Args:
        config: `ml_collections.ConfigDict`; changed in place. Sections may be missing.
    """
    for section, names in RENAMED.items():
        for old, new in names.items() if section in config else ():
            value = config[section].get(old)
            if value is not None:
                renamed(f"config.{section}.{old}", f"config.{section}.{new}")
                config[section][new] = value
            if old in config[section]:
                with config[section].unlocked():
                    del config[section][old]


def rename_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Returns the plain dictionary of a configuration, written by an earlier version, with the new names."""
    result = dict(saved)
    for section, names in RENAMED.items():
        settings = dict(saved.get(section) or {})
        for old, new in names.items():
            value = settings.pop(old, None)
            if value is not None:
                settings[new] = value
        result[section] = settings
    return result
