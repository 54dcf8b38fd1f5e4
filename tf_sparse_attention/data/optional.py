"""Imports of optional packages, with errors that name the extra to install, and the folder of data sets."""

import os
from types import ModuleType


def import_tfds() -> ModuleType:
    """Import and return `tensorflow_datasets`.

    Raises:
        ImportError: If `tensorflow_datasets` or one of its dependencies is not installed. The message names the extra.
    """
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "Reading TFDS data sets needs tensorflow-datasets. Install it with "
            "`pip install 'tf-sparse-attention[train]'`. "
            f"The import failed with: {error}"
        ) from error
    return tensorflow_datasets


def data_folder(data_dir: str | os.PathLike | None = None) -> str:
    """Return the folder of data sets without importing tensorflow-datasets.

    Args:
        data_dir: the folder; "~" is the home folder. None: the default of TFDS, the environment variable
            `TFDS_DATA_DIR` or ~/tensorflow_datasets.
    """
    default = os.environ.get("TFDS_DATA_DIR", os.path.join("~", "tensorflow_datasets"))
    return os.path.expanduser(default if data_dir is None else data_dir)
