"""Packages that only training needs."""


def import_tfds():
    """Imports `tensorflow_datasets`, or says which extra brings it.

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
