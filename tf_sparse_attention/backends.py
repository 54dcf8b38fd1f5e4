"""Checks that backends and optional packages are installed, and queries about TensorFlow replicas.

Backends and Keras are imported only inside functions.
"""

import importlib.util
import os
from typing import Any

BACKENDS = ("tensorflow", "jax")  # also the names of extras; on TPUs `tpu` and `jax-tpu`


def check_backend() -> None:
    """Import Keras with its backend.

    Raises:
        ImportError: If the backend is not installed. The message names the extra, and an installed backend if any.
        ValueError: If the name of the backend is unknown.
    """
    try:
        import keras  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow", "jax", "torch"):
            raise
        found = [name for name in BACKENDS if importlib.util.find_spec(name) is not None]
        chosen = f"KERAS_BACKEND={os.environ['KERAS_BACKEND']}" if "KERAS_BACKEND" in os.environ else "Keras's default"
        choice = f", or set KERAS_BACKEND={found[0]}, which is installed, before Python starts" if found else ""
        raise ImportError(
            "Keras needs a backend: pip install 'tf-sparse-attention[tensorflow]' or 'tf-sparse-attention[jax]', on a "
            f"TPU 'tf-sparse-attention[tpu]' or 'tf-sparse-attention[jax-tpu]'{choice}. "
            f"Received: the backend {error.name} ({chosen}), which is not installed.",
            name=error.name,
        ) from error
    except ValueError as error:  # an unknown backend
        if "Unable to import backend" not in str(error):
            raise
        raise ValueError(
            f"The environment variable `KERAS_BACKEND` must be {' or '.join(BACKENDS)}. "
            f"Received: {os.environ.get('KERAS_BACKEND', 'another one in keras.json')}."
        ) from error


def has_tensorflow() -> bool:
    """Return whether TensorFlow can be imported. If so, data pipelines use it on every backend."""
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        return False
    return True


def require_tensorflow(feature: str) -> None:
    """Raise an `ImportError` that names the extra unless TensorFlow is installed.

    Args:
        feature: the feature that needs TensorFlow, for example "A SavedModel".
    """
    if not has_tensorflow():
        raise ImportError(
            f"{feature} needs TensorFlow: pip install 'tf-sparse-attention[tensorflow]'.", name="tensorflow"
        )


def import_optional(name: str, extra: str, feature: str) -> Any:
    """Import and return a module, or raise an `ImportError` that names the extra to install.

    Args:
        name: name of the module.
        extra: extra of this library that installs the module.
        feature: the feature that needs the module, for example "Writing ONNX files".
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{feature} needs {name.replace('_', '-')}. Install it with `pip install 'tf-sparse-attention[{extra}]'`. "
            f"The import failed with: {error}"
        ) from error


def replica_count() -> int:
    """Return the number of replicas of the TensorFlow strategy; 1 on other backends, whose arrays are global."""
    import keras

    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def in_several_replicas() -> bool:
    """Return whether the caller runs in the context of one of several replicas."""
    if replica_count() == 1:
        return False
    import tensorflow as tf

    return tf.distribute.in_cross_replica_context() is False
