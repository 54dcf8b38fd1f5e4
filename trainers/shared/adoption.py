"""Models from elsewhere: what `trainers.adopt` does once its flags are read."""

import pathlib

from absl import logging

from trainers.shared import tokenizers, workdir
from trainers.shared.loading import load_language_model


def adopt(config, path, folder):
    """Makes the work folder of a model that was trained, or converted, elsewhere.

    Args:
        config: `ml_collections.ConfigDict`: the text, its windows and the tokenizer of the model.
        path: The model, a `.keras` file. One with more ids than the tokenizer is taken with a warning.
        folder: The work folder; made if it does not exist.

    Returns:
        The model.

    Raises:
        ValueError: If there is a run in the folder, or `load_language_model` raises it.
    """
    if (pathlib.Path(folder).expanduser() / workdir.CONFIG).exists():
        raise ValueError(f"`workdir` must be new, or hold no run. Received: workdir={folder}, where there is one.")
    tokenizer = tokenizers.make_tokenizer(config.data.tokenizer, config.data.vocabulary)
    model = load_language_model("model", path, tokenizer.vocabulary_size)
    further = model.backbone.vocabulary_size - tokenizer.vocabulary_size
    if further:
        logging.warning(
            "The model has %d ids more than the tokenizer: right if its vocabulary was filled up, else a wrong one.",
            further,
        )
    folder = workdir.open_workdir(folder, create=True)
    workdir.save_model(folder, model)
    workdir.save_tokenizer(folder, tokenizer)
    workdir.save_source(folder, None)
    workdir.save_config(folder, config)  # last: with it the folder holds a run
    return model
