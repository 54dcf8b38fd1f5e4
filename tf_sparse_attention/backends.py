"""Which backends of Keras are installed, and an error that names the extras where the chosen one is not."""

import importlib.util
import os

BACKENDS = ("tensorflow", "jax")  # each with an extra of its name; on TPUs `tpu` and `jax-tpu`


def check_backend() -> None:
    """Import Keras with its backend.

    Raises:
        ImportError: If the backend is not installed: which extra installs it, or which one to choose that is there.
        ValueError: If Keras knows no backend of the name.
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
    except ValueError as error:  # of a backend that Keras does not know
        if "Unable to import backend" not in str(error):
            raise
        raise ValueError(
            f"`KERAS_BACKEND`, a variable of the environment, must be {' or '.join(BACKENDS)}. "
            f"Received: {os.environ.get('KERAS_BACKEND', 'another one in keras.json')}."
        ) from error


def has_tensorflow() -> bool:
    """Return whether TensorFlow is installed, and imports it: data are read by it where it is, on every backend."""
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        return False
    return True


def require_tensorflow(what: str) -> None:
    """Raise an `ImportError` that names the extra unless TensorFlow is installed.

    Args:
        what: what needs it, "A SavedModel" for example.
    """
    if not has_tensorflow():
        raise ImportError(f"{what} needs TensorFlow: pip install 'tf-sparse-attention[tensorflow]'.", name="tensorflow")
