"""Makes a work folder from a given model: the body of `tsa-import`."""

import os
import pathlib

import keras
import ml_collections

from tf_sparse_attention.trainers.shared import tokenizers, workdir
from tf_sparse_attention.trainers.shared.loading import load_language_model


def import_model(config: ml_collections.ConfigDict, path: str | os.PathLike, folder: str | os.PathLike) -> keras.Model:
    """Makes the work folder of a model that was trained, or converted, by other means.

    Args:
        config: `ml_collections.ConfigDict`: the text, its windows and the tokenizer of the model.
        path: the model, a `.keras` file. A larger vocabulary than that of the tokenizer gives a warning.
        folder: the work folder; made if it does not exist.

    Returns:
        The model.

    Raises:
        ValueError: If there is a run in the folder, or `load_language_model` raises it.
    """
    if (pathlib.Path(folder).expanduser() / workdir.CONFIG).exists():
        raise ValueError(f"`workdir` must be new, or hold no run. Received: workdir={folder}, where there is one.")
    tokenizer = tokenizers.make_tokenizer(config.data.tokenizer, config.data.vocabulary)
    model = load_language_model("model", path, tokenizer.vocabulary_size)
    folder = workdir.open_workdir(folder, create=True)
    workdir.save_model(folder, model)
    workdir.save_state(folder, {"tokenizer": tokenizers.description_of(tokenizer)})
    workdir.save_source(folder, None)
    workdir.save_config(folder, config)  # last: with it the folder holds a run
    return model
