"""Inputs of models: token ids with their checks, and input dictionaries."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.checks import check_dense, concrete_values
from tf_sparse_attention.data.batches.batches import OUT_OF_RANGE, check_dataset, is_dataset
from tf_sparse_attention.layers.parts.call_inputs import as_integers
from tf_sparse_attention.types import Tensor


def as_token_ids(name: str, ids: Tensor, vocabulary_size: int) -> Tensor:
    """Return token ids as integers.

    Raises:
        ValueError: if ids are not whole numbers; in eager mode, if ids exceed the vocabulary. In compiled programs,
            TensorFlow on a CPU raises another error, and other devices return an arbitrary vector.
    """
    ids = as_integers(name, ids)
    values = concrete_values(ids)
    if values is not None:
        check_range(name, values, vocabulary_size)
    return ids


def check_range(name: str, ids: np.ndarray, vocabulary_size: int) -> None:
    """Raise a `ValueError` if ids are outside the vocabulary."""
    wrong = ids[(ids < 0) | (ids >= vocabulary_size)]
    if wrong.size:
        raise ValueError(
            f"`{name}` must be token ids from 0 to {vocabulary_size - 1}, the vocabulary of the model. "
            f"Received: id {int(wrong[0])}."
        )


class CheckedInputs:
    """Mixin that checks the token ids in the data of `fit`, `evaluate` and `predict`.

    Arrays, `tf.data.Dataset`s and generators are checked, also in validation data. A `keras.utils.PyDataset` or another
    loader is not checked.
    """

    vocabulary_size: int  # None: features, which are not checked

    @property
    def input_dtype(self) -> str:
        """Input dtype for exports by Keras."""
        return "float32" if self.vocabulary_size is None else "int32"

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        data = kwargs.get("validation_data")
        if data is not None:  # Keras creates its iterator before it calls `evaluate`
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
            # TensorFlow raises this error inside the dataset, with a long trace of all surrounding programs.
            if isinstance(error, ValueError) or OUT_OF_RANGE not in str(error):
                raise
        raise ValueError(
            f"`x` must be {OUT_OF_RANGE} {self.vocabulary_size - 1}, the vocabulary of the model. "
            "Received: a batch with other ids."
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
                "`x` must be one array or tensor of token ids, a dictionary with `token_ids`, or a dataset or iterator "
                f"of batches. Received: a {type(x).__name__}."
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


ENCODER_INPUTS = ("encoder_sequence", "encoder_padding_mask", "encoder_segment_ids")  # for blocks with cross-attention


class Unpacked(NamedTuple):
    """Inputs of a backbone.

    Attributes:
        tokens: token ids, or features.
        padding_mask: bool (B, T), or None.
        segment_ids: int (B, T), or None.
        further: additional inputs that only some blocks accept, by name.
    """

    tokens: Tensor
    padding_mask: Tensor | None
    segment_ids: Tensor | None
    further: dict[str, Tensor]


def unpack(
    inputs: Tensor | dict[str, Tensor],
    names: Sequence[str],
    padding_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
) -> Unpacked:
    """Unpack the inputs of a model, a tensor or a dictionary.

    Args:
        inputs: token ids or features, or a dictionary.
        names: result of `list_input_names`.
        padding_mask: default if the dictionary has no "padding_mask".
        segment_ids: default if the dictionary has no "segment_ids".

    Raises:
        ValueError: if the dictionary has missing or unknown keys, or a tensor is ragged.
    """
    named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
    for name, x in {"padding_mask": padding_mask, "segment_ids": segment_ids, **named}.items():
        check_dense(name, x)
    if not isinstance(inputs, dict):
        return Unpacked(inputs, padding_mask, segment_ids, {})
    first, *optional = names
    if first not in inputs or set(inputs) - set(names):
        listed = ", ".join(repr(name) for name in optional[:-1])
        raise ValueError(
            f"`inputs` must have the key {first!r} and may have {listed} and {optional[-1]!r}. "
            f"Received: keys {sorted(inputs)}."
        )
    masks = inputs.get("padding_mask", padding_mask), inputs.get("segment_ids", segment_ids)
    further = {name: inputs[name] for name in optional[2:] if inputs.get(name) is not None}
    return Unpacked(inputs[first], *masks, further)


def list_input_names(blocks: Sequence[keras.layers.Layer], are_tokens: bool = True) -> tuple[str, ...]:
    """Return the allowed keys of an input dictionary; the first is required."""
    across = ENCODER_INPUTS if any(block.cross_attention is not None for block in blocks) else ()
    first = "token_ids" if are_tokens else "features"
    return (first, "padding_mask", "segment_ids", *collect_extra_mask_names(blocks), *across)


def collect_extra_mask_names(blocks: Sequence[keras.layers.Layer]) -> tuple[str, ...]:
    """Return the names of masks that only some blocks accept."""
    return tuple(dict.fromkeys(name for block in blocks for name in block.attention.extra_mask_names))


def select_masks(block: keras.layers.Layer, extra_masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the extra masks that the attention of a block accepts, by name."""
    return {name: extra_masks[name] for name in block.attention.extra_mask_names if name in extra_masks}


def select_block_inputs(block: keras.layers.Layer, further: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the additional inputs that a block accepts, by name."""
    across = ENCODER_INPUTS if block.cross_attention is not None else ()
    return select_masks(block, further) | {name: further[name] for name in across if name in further}
