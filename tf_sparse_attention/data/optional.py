"""Imports of optional packages, with errors that name the extra to install, and the folder that one of them uses."""

import os
from types import ModuleType


def import_tfds() -> ModuleType:
    """Imports `tensorflow_datasets`, or raises an error that names the extra to install.

    Returns:
        The module `tensorflow_datasets`.

    Raises:
        ImportError: If it, or a package it needs, is not installed.
    """
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "Reading data sets needs tensorflow-datasets. Install it with `pip install 'tf-sparse-attention[train]'`. "
            f"The import said: {error}"
        ) from error
    return tensorflow_datasets


def import_tensorflow_text() -> ModuleType:
    """Imports `tensorflow_text`, or raises an error that names the extra to install.

    Returns:
        The module `tensorflow_text`.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import tensorflow_text
    except ImportError as error:
        raise ImportError(
            "SentencePiece and WordPiece need tensorflow-text, which is not available on Windows. Install it with "
            f"`pip install 'tf-sparse-attention[text]'`. The import said: {error}"
        ) from error
    return tensorflow_text


def data_folder(data_dir: str | os.PathLike | None = None) -> str:
    """Returns the folder of data sets, whether tensorflow-datasets is installed or not.

    Args:
        data_dir: the folder, in which "~" is the home folder. None: TFDS's own default, the environment variable
            `TFDS_DATA_DIR`, or else ~/tensorflow_datasets.
    """
    default = os.environ.get("TFDS_DATA_DIR", os.path.join("~", "tensorflow_datasets"))
    return os.path.expanduser(default if data_dir is None else data_dir)
