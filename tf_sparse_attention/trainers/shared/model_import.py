"""Import of a model into a run directory, for `tsa-import`."""

import os
import pathlib

import keras
import ml_collections

from tf_sparse_attention.trainers.shared import tokenizers, workdir
from tf_sparse_attention.trainers.shared.loading import load_language_model


def import_model(config: ml_collections.ConfigDict, path: str | os.PathLike, folder: str | os.PathLike) -> keras.Model:
    """Create a run directory from a model file, and return the model.

    Args:
        config: `ml_collections.ConfigDict` with the text, its windows and the tokenizer of the model.
        path: `.keras` file. Logs a warning if the model has a larger vocabulary than the tokenizer.
        folder: run directory; created if it does not exist.

    Raises:
        ValueError: If the folder contains a run; see also `load_language_model`.
    """
    if (pathlib.Path(folder).expanduser() / workdir.CONFIG).exists():
        raise ValueError(f"`workdir` must not contain a run. Received: workdir={folder}.")
    tokenizer = tokenizers.make_tokenizer(config.data.tokenizer, config.data.vocabulary)
    model = load_language_model("model", path, tokenizer.vocabulary_size)
    folder = workdir.open_workdir(folder, create=True)
    workdir.save_model(folder, model)
    workdir.save_state(folder, {"tokenizer": tokenizers.describe(tokenizer)})
    workdir.save_source(folder, None)
    workdir.save_config(folder, config)  # last, since it marks the folder as a run
    return model
