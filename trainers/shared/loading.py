"""Loads language models from files."""

import os
import pathlib

import keras
import ml_collections

from tf_sparse_attention.convert.weights import rebuilt
from tf_sparse_attention.models import LanguageModel


def start_from(path: str | os.PathLike, config: ml_collections.ConfigDict, vocabulary_size: int) -> keras.Model:
    """Returns the language model in a file, to continue training, in the dtype of the configuration.

    Raises:
        ValueError: If `load_language_model` raises it, or the configuration has another `memory_length` or `causal`.
    """
    model = load_language_model("config.model.start_from", path, vocabulary_size)
    for name in ("memory_length", "causal"):
        found = getattr(model.backbone, name)
        if config.model[name] != found:
            raise ValueError(
                f"`config.model.{name}` must be that of the model in config.model.start_from. "
                f"Received: {name}={config.model[name]}, in the model {found}."
            )
    return rebuilt(model, dtype=config.train.dtype)


def load_language_model(name: str, path: str | os.PathLike, vocabulary_size: int) -> keras.Model:
    """Returns the language model in a file, not compiled.

    Args:
        name: name of the setting in error messages.
        path: a `.keras` file.
        vocabulary_size: ids of the tokenizer.

    Raises:
        ValueError: If there is no such file, or it holds no `LanguageModel`, or the vocabulary of the model is smaller.
    """
    if not pathlib.Path(path).expanduser().is_file():
        raise ValueError(f"`{name}` must be a file NAME.keras. Received: {path}, which is not there.")
    model = keras.models.load_model(pathlib.Path(path).expanduser(), compile=False)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"`{name}` must hold a `LanguageModel`. Received: a {type(model).__name__} in {path}.")
    if model.backbone.vocabulary_size < vocabulary_size:
        raise ValueError(
            "The tokenizer must have no more ids than the model, and be the one it was trained with. "
            f"Received: {vocabulary_size} ids, a model of {model.backbone.vocabulary_size}."
        )
    return model
