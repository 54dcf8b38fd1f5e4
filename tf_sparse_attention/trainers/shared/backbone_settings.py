"""Conversion between settings of `config.model` and arguments of `Backbone`."""

from typing import Any

import ml_collections

from tf_sparse_attention.models.backbone_options import GROUPS, as_options
from tf_sparse_attention.types import Config

# Settings with the same name as the argument.
ARGUMENTS = (
    *("num_layers", "hidden_dim", "intermediate_dim", "activation", "causal", "memory_length", "remat"),
    "cross_attention",
)
# {group of options of `Backbone`: {option: setting}}
OPTIONS = {
    "attention": {"parts": "attention", "num_local_layers": "num_local_layers"},
    "embedding": {"dim": "embedding_dim", "grid": "grid", "sinusoidal": "sinusoidal"},
    "norm": {"placement": "norm", "epsilon": "layer_norm_epsilon"},
    "dropout": {
        "residual": "dropout",
        "embedding": "embedding_dropout",
        "activation": "activation_dropout",
        "tokens": "token_dropout",
    },
}


def set_values(section: ml_collections.ConfigDict) -> dict[str, Any]:
    """Return the settings of a section that are not None, as a plain dictionary."""
    return {name: value for name, value in section.to_dict().items() if value is not None}


def backbone_arguments(config: ml_collections.ConfigDict) -> Config:
    """Return the arguments of `Backbone` for a configuration, without the vocabulary size.

    Groups of options are dictionaries. Settings that are None or empty are omitted.
    """
    settings = {name: value for name, value in set_values(config.model).items() if value not in ([], ())}
    arguments = {name: settings[name] for name in ARGUMENTS if name in settings}
    for group, names in OPTIONS.items():
        if options := {option: settings[name] for option, name in names.items() if name in settings}:
            arguments[group] = options
    return {**arguments, "seed": config.seed, "dtype": config.train.dtype}


def settings_from_arguments(arguments: Config) -> dict[str, Any]:
    """Return the settings of `config.model` for arguments of `Backbone`."""
    settings = {name: arguments[name] for name in ARGUMENTS if name in arguments}
    for group, names in OPTIONS.items():
        if group in arguments:
            options = as_options(GROUPS[group], group, arguments[group])
            settings |= {name: getattr(options, option) for option, name in names.items()}
    return settings
