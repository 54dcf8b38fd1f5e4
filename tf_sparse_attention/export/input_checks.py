"""Checks of models that several exports share."""

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.models import LanguageModel


def check_kind(model: keras.Model, what: str, kind: type | tuple[type, ...] = LanguageModel) -> None:
    """Raises a `ValueError` unless `model` is a `LanguageModel`, or of another kind, on the TensorFlow backend."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{what} can be written on the TensorFlow backend alone. Save the model with `model.save('model.keras')`, "
            "and in a process with KERAS_BACKEND=tensorflow load it with `keras.models.load_model` and export it. "
            f"Received: backend={keras.backend.backend()!r}."
        )
    if not isinstance(model, kind):
        names = " or ".join(f"`{each.__name__}`" for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ValueError(f"`model` must be a {names}. Received: model={model!r}.")


def check_length(name: str, length: int, positions: int | None) -> None:
    """Raises a `ValueError` unless `length` is a positive integer of at most the positions of a model, None: any."""
    checks.check_count(name, length)
    if positions is not None and length > positions:
        raise ValueError(f"`{name}` must be at most the {positions} positions of the model. Received: {name}={length}.")
