"""Loading of a model to continue training, with a check of `config.model`."""

import os
from collections.abc import Iterator
from typing import Any

import keras
import ml_collections

from tf_sparse_attention.models.presets import preset_arguments
from tf_sparse_attention.models.rebuilding import rebuilt
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared.backbone_settings import settings_from_arguments
from tf_sparse_attention.trainers.shared.loading import load_language_model

ALWAYS_COMPARED = ("memory_length", "causal")  # the trainer reads them from the configuration
NOT_COMPARED = ("start_from", "preset", "reproduce_reference", "initialization")


def start_from(path: str | os.PathLike, config: ml_collections.ConfigDict, vocabulary_size: int) -> keras.Model:
    """Load a language model from a file in the dtype of the configuration.

    Raises:
        ValueError: If a setting of `config.model` differs from its default and from the model; see also
            `load_language_model`.
    """
    model = load_language_model("config.model.start_from", path, vocabulary_size)
    for name, setting, actual in _differences(config.model, model):
        raise ValueError(
            f"`config.model.{name}` must be unset, or match the model in config.model.start_from. "
            f"Received: {name}={setting!r}, in the model {actual!r}."
        )
    return rebuilt(model, dtype=config.train.dtype)


def _differences(settings: ml_collections.ConfigDict, model: keras.Model) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, value, value in the model) of different settings, including settings of the preset."""
    actual, defaults = _model_settings(model), base.get_config().model.to_dict()
    given = {name: value for name, value in settings.to_dict().items() if name not in NOT_COMPARED}
    for name, value in given.items():
        if (name in ALWAYS_COMPARED or value not in (None, defaults[name])) and not _matches(value, actual[name]):
            yield name, value, actual[name]
    if settings.preset is not None:
        sizes = settings_from_arguments(preset_arguments(settings.preset))
        sizes = {name: value for name, value in sizes.items() if isinstance(value, int)}
        for name, value in sizes.items():
            if given.get(name) is None and not _matches(value, actual.get(name, value)):
                yield "preset", f"{settings.preset}, with {name}={value}", actual[name]


def _model_settings(model):
    """Return the settings of `config.model` that describe a model."""
    return {
        **settings_from_arguments(model.backbone.get_config()),
        "tie_embeddings": model.tie_embeddings,
        "use_output_bias": model.use_output_bias,
    }


def _matches(setting, actual):
    """Return whether a setting equals that of a model. Dictionaries match if the model has all their items."""
    if isinstance(setting, dict) and isinstance(actual, dict):
        if "class_name" in actual and "layer" in setting:
            actual = {**actual["config"], "layer": actual["class_name"]}
        return all(name in actual and _matches(value, actual[name]) for name, value in setting.items())
    if isinstance(setting, (list, tuple)) and isinstance(actual, (list, tuple)):
        return len(setting) == len(actual) and all(_matches(*pair) for pair in zip(setting, actual, strict=True))
    return setting == actual
