"""Which backends of Keras are installed, an error where the chosen one is not, and how many replicas there are."""

import importlib.util
import os

BACKENDS = ("tensorflow", "jax")  # each with an extra of its name; on TPUs `tpu` and `jax-tpu`


def check_backend() -> None:
    """Imports Keras with its backend.

    Raises:
        ImportError: If the backend is not installed: which extra installs it, or which one to choose that is there.
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


def has_tensorflow() -> bool:
    """Returns whether TensorFlow is installed, and imports it: data are read by it where it is, on every backend."""
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        return False
    return True


def require_tensorflow(what: str) -> None:
    """Raises an `ImportError` that names the extra unless TensorFlow is installed.

    Args:
        what: what needs it, "A SavedModel" for example.
    """
    if not has_tensorflow():
        raise ImportError(f"{what} needs TensorFlow: pip install 'tf-sparse-attention[tensorflow]'.", name="tensorflow")


def replica_count() -> int:
    """Returns how many TensorFlow replicas the current strategy has; 1 on other backends, whose arrays are global."""
    import keras

    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def in_several_replicas() -> bool:
    """Returns whether this code runs as one of several replicas."""
    if replica_count() == 1:
        return False
    import tensorflow as tf

    return tf.distribute.in_cross_replica_context() is False
