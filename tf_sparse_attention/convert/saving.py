"""Writing a model so that a file of its name is always whole."""

import os
import pathlib
import tempfile


def save_model(model, path):
    """Saves a model as a `.keras` file: it is written beside and renamed.

    Args:
        model: `keras.Model`.
        path: ends in .keras; folders are made.
    """
    path = pathlib.Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.incomplete-", dir=path.parent) as beside:
        written = pathlib.Path(beside) / path.name
        model.save(written)
        os.replace(written, path)
