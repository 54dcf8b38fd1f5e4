"""The model that a training continues, and whether the configuration contradicts it."""

import os
from collections.abc import Iterator
from typing import Any

import keras
import ml_collections

from tf_sparse_attention.models.presets import preset_arguments
from tf_sparse_attention.models.rebuilding import rebuilt
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared.backbone_settings import settings_of
from tf_sparse_attention.trainers.shared.loading import load_language_model

ALWAYS_COMPARED = ("memory_length", "causal")  # the trainer reads them of the configuration
NOT_COMPARED = ("start_from", "preset", "reproduce_reference", "initialization")


def start_from(path: str | os.PathLike, config: ml_collections.ConfigDict, vocabulary_size: int) -> keras.Model:
    """Returns the language model in a file, to continue training, in the dtype of the configuration.

    Raises:
        ValueError: If `load_language_model` raises it, or a setting of `config.model` says something else than the
            model; those that are as in `trainers/configs/base.py` say nothing.
    """
    model = load_language_model("config.model.start_from", path, vocabulary_size)
    for name, stated, found in _differences(config.model, model):
        raise ValueError(
            f"`config.model.{name}` must be that of the model in config.model.start_from, or left out. "
            f"Received: {name}={stated!r}, in the model {found!r}."
        )
    return rebuilt(model, dtype=config.train.dtype)


def _differences(settings: ml_collections.ConfigDict, model: keras.Model) -> Iterator[tuple[str, Any, Any]]:
    """Yields name, value and value in the model of settings that differ, those of a preset included."""
    has, defaults = _settings_of(model), base.get_config().model.to_dict()
    stated = {name: value for name, value in settings.to_dict().items() if name not in NOT_COMPARED}
    for name, value in stated.items():
        if (name in ALWAYS_COMPARED or value not in (None, defaults[name])) and not _agrees(value, has[name]):
            yield name, value, has[name]
    if settings.preset is not None:
        sizes = settings_of(preset_arguments(settings.preset))
        sizes = {name: value for name, value in sizes.items() if isinstance(value, int)}
        for name, value in sizes.items():
            if stated.get(name) is None and not _agrees(value, has.get(name, value)):
                yield "preset", f"{settings.preset}, of {name}={value}", has[name]


def _settings_of(model):
    """Returns a model as `config.model` would describe it, a dictionary."""
    return {
        **settings_of(model.backbone.get_config()),
        "tie_embeddings": model.tie_embeddings,
        "use_output_bias": model.use_output_bias,
    }


def _agrees(stated, found):
    """Returns whether a model has what is stated, a part of attention all of its arguments that are given."""
    if isinstance(stated, dict) and isinstance(found, dict):
        if "class_name" in found and "layer" in stated:
            found = {**found["config"], "layer": found["class_name"]}
        return all(name in found and _agrees(value, found[name]) for name, value in stated.items())
    if isinstance(stated, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(stated) == len(found) and all(_agrees(*pair) for pair in zip(stated, found, strict=True))
    return stated == found
