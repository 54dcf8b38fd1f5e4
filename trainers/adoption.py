"""Models from elsewhere: what `trainers.adopt` does once its flags are read."""

from trainers import tokenizers, workdir
from trainers.loading import load_language_model


def adopt(config, path, folder):
    """Makes the work folder of a model that was trained, or converted, elsewhere.

    Args:
        config: `ml_collections.ConfigDict`: the text, its windows and the tokenizer of the model.
        path: The model, a `.keras` file.
        folder: The work folder; made if it does not exist.

    Returns:
        The model.

    Raises:
        ValueError: If there is a run in the folder, or `load_language_model` raises it.
    """
    tokenizer = tokenizers.make_tokenizer(config)
    model = load_language_model(path, tokenizer.vocabulary_size)
    folder = workdir.open_workdir(folder, create=True)
    if (folder / workdir.CONFIG).exists():
        raise ValueError(f"`workdir` must be new, or hold no run. Received: workdir={folder}, where there is one.")
    workdir.save_model(folder, model)
    workdir.save_tokenizer(folder, tokenizer)
    workdir.save_config(folder, config)  # last: with it the folder holds a run
    return model
