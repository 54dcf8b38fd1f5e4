"""Token ids as integers, checked wherever they can be seen."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from keras import ops

from tf_sparse_attention.checks import concrete_values
from tf_sparse_attention.data.batches.checked_ids import OUT_OF_RANGE, check_dataset, is_dataset
from tf_sparse_attention.layers.parts.call_inputs import as_integers
from tf_sparse_attention.types import Tensor


def as_token_ids(name: str, ids: Tensor, vocabulary_size: int) -> Tensor:
    """Returns token ids as integers.

    Raises:
        ValueError: for ids that are no whole numbers, and for those beyond the vocabulary, where they can be seen. A
            program cannot raise; there TensorFlow's processor has an error of its own, and others read some vector.
    """
    ids = as_integers(name, ids)
    known = concrete_values(ids)
    if known is not None:
        check_range(name, known, vocabulary_size)
    return ids


def check_range(name: str, ids: np.ndarray, vocabulary_size: int) -> None:
    """Raises a `ValueError` for ids that no word of the vocabulary has."""
    wrong = ids[(ids < 0) | (ids >= vocabulary_size)]
    if wrong.size:
        raise ValueError(
            f"`{name}` must be token ids from 0 to {vocabulary_size - 1}, the vocabulary of the model. "
            f"Received: {int(wrong[0])} among them."
        )


class CheckedInputs:
    """Mixin of models of token ids: what `fit`, `evaluate` and `predict` read is checked before a program has it.

    These are arrays, `tf.data.Dataset`s and generators, also those to validate with; what a `keras.utils.PyDataset` or
    another loader gives is not looked at.
    """

    vocabulary_size: int  # None in models of features, which are not looked at

    @property
    def input_dtype(self) -> str:
        """The dtype for which Keras exports a model."""
        return "float32" if self.vocabulary_size is None else "int32"

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        data = kwargs.get("validation_data")
        if data is not None:  # Keras evaluates with an iterator that it has made before
            is_split = isinstance(data, (tuple, list))
            kwargs["validation_data"] = (self._checked(data[0]), *data[1:]) if is_split else self._checked(data)
        return self._with_checked(super().fit, x, *args, **kwargs)  # type: ignore[misc]

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self._with_checked(super().evaluate, x, *args, **kwargs)  # type: ignore[misc]

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return self._with_checked(super().predict, x, *args, **kwargs)  # type: ignore[misc]

    def _with_checked(self, run, x, *args, **kwargs):
        x = self._checked(x)
        try:
            return run(x, *args, **kwargs)
        except Exception as error:
            # Of TensorFlow, from inside of the dataset, with the place in all programs around it.
            if isinstance(error, ValueError) or OUT_OF_RANGE not in str(error):
                raise
        raise ValueError(
            f"`x` must be {OUT_OF_RANGE} {self.vocabulary_size - 1}, the vocabulary of the model. "
            "Received: a batch with others among them."
        )

    def _checked(self, x):
        if self.vocabulary_size is None:
            return x
        if is_dataset(x):
            return check_dataset(x, self.vocabulary_size)
        if isinstance(x, Iterator):
            return (self._check_batch(batch) for batch in x)
        if isinstance(x, (list, tuple)):
            raise ValueError(
                "`x` must be one array or tensor of token ids, a dictionary with `token_ids`, or what gives batches of "
                f"these. Received: a {type(x).__name__}."
            )
        if isinstance(x, np.ndarray) or ops.is_tensor(x) or isinstance(x, dict):
            self._check_batch(x)
        return x

    def _check_batch(self, batch):
        inputs = batch[0] if isinstance(batch, tuple) else batch
        ids = inputs.get("token_ids") if isinstance(inputs, dict) else inputs
        if ids is not None and hasattr(ids, "dtype"):
            as_token_ids("x", ids, self.vocabulary_size)
        return batch
