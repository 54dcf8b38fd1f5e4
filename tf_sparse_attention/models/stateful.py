"""Language model that carries its segment memory from batch to batch."""

import inspect
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.backends import replica_count
from tf_sparse_attention.data.batches.batches import is_dataset
from tf_sparse_attention.models.inputs import CheckedInputs
from tf_sparse_attention.models.language_model import LanguageModel
from tf_sparse_attention.models.model import Model, TargetsAsInputs
from tf_sparse_attention.types import Config, Tensor

KERAS_BATCH_SIZE = 32  # default for arrays


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class StatefulModel(CheckedInputs, TargetsAsInputs, Model):
    """Language model that carries its segment memory from batch to batch, like a stateful Keras RNN.

    Row b continues row b of the previous batch. Every call, in training or not, reads and updates the memory. The
    memory is stored in non-trainable weights, so checkpoints of this model include it, and a resumed run continues
    exactly. A document with a new id starts from an empty memory, without a reset. For validation, create a second
    `StatefulModel` around the same model.

    Args:
        model: a `LanguageModel` whose backbone has a positive `memory_length`. This model has the trained weights:
            save it, export it and sample from it.
        batch_size: B, rows per batch.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: as for `model`, with B rows, such as from `tf_sparse_attention.data.segment_batches`.
        training: as for `model`.

    Returns:
        Logits (B, T, V); with "targets", their -log p in nats, (B, T).

    Raises:
        ValueError: if an argument or the batch size is invalid, `fit` gets validation data, or there are several
            replicas.

    Example:
        >>> part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 64}
        >>> model = LanguageModel(Backbone(258, 2, 16, [part], intermediate_dim=64, memory_length=63))
        >>> training = StatefulModel(model, batch_size=4)
        >>> training.compile("adam", loss=language_model_loss())
    """

    _model_arguments = ("model",)

    def __init__(self, model: LanguageModel, batch_size: int, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # float ids would be rounded to half precision
        checks.check_count("batch_size", batch_size)
        if not isinstance(model, LanguageModel):
            raise ValueError(f"`model` must be a `LanguageModel`. Received: model={model!r}.")
        if replica_count() > 1:
            raise ValueError(
                "A `StatefulModel` must be created on one device: each replica would need a separate memory. "
                f"Received: a strategy with {replica_count()} replicas."
            )
        self.model = model
        self.batch_size = batch_size
        self._memory = {name: self._add_memory(name, empty) for name, empty in model.init_memory(batch_size).items()}
        self.built = True
        self.reset_state()

    @property
    def vocabulary_size(self) -> int:  # type: ignore[override]  # a property, not an attribute
        """V, number of token ids."""
        return self.model.vocabulary_size

    @property
    def loss_from_targets(self) -> bool:  # type: ignore[override]  # a property, not an attribute
        """Whether training is cheaper with targets as inputs."""
        return self.model.loss_from_targets

    def _add_memory(self, name, empty):
        dtype = keras.backend.standardize_dtype(empty.dtype)
        return self.add_weight(
            name=f"memory_{name}", shape=empty.shape, initializer="zeros", dtype=dtype, trainable=False, autocast=False
        )

    def _with_checked(self, run, x, *args, **kwargs):
        """Raise a `ValueError` for a wrong number of rows before compilation; see `CheckedInputs`."""
        arguments = inspect.signature(run).bind(x, *args, **kwargs).arguments
        if arguments.get("validation_data") is not None or arguments.get("validation_split"):
            raise ValueError(
                "`validation_data` must be None, because validation would change the memory. Evaluate a second "
                "`StatefulModel` around the same model. Received: validation data."
            )
        self._check_rows(x, arguments.get("batch_size") or KERAS_BATCH_SIZE)
        return super()._with_checked(run, x, *args, **kwargs)

    def _checked(self, x):
        x = super()._checked(x)
        return (self._check_rows(batch) for batch in x) if isinstance(x, Iterator) else x

    def _check_rows(self, x, largest=None):
        """Return `x`, or raise a `ValueError` for a wrong number of rows. `largest`: batch size of arrays, or None."""
        first = keras.tree.flatten(x.element_spec if is_dataset(x) else x)[0]
        if not getattr(first, "shape", None):
            return x  # unknown before the first batch
        rows = first.shape[0]
        is_whole = rows is not None and rows % self.batch_size == 0
        if not is_whole or (rows if is_dataset(x) or largest is None else min(rows, largest)) != self.batch_size:
            raise ValueError(
                f"`x` must be batches of `batch_size` rows, {self.batch_size}. Batch a dataset with "
                f"`batch({self.batch_size}, drop_remainder=True)`; pass `batch_size={self.batch_size}` with arrays. "
                f"Received: {'batches of unknown' if rows is None else rows} rows."
            )
        return x

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        inputs = keras.tree.map_structure(self._with_known_rows, inputs)
        token_ids = inputs["token_ids"] if isinstance(inputs, dict) else inputs
        if token_ids.shape[0] != self.batch_size:
            raise ValueError(
                f"`inputs` must have `batch_size` rows, {self.batch_size}. Drop a smaller last batch. "
                f"Received: {token_ids.shape[0]} rows."
            )
        memory = {name: ops.convert_to_tensor(variable) for name, variable in self._memory.items()}
        outputs, memory = self.model.forward_with_memory(inputs, memory, training=training)
        for name, variable in self._memory.items():
            value = memory[name]
            if keras.backend.is_float_dtype(variable.dtype):
                # A NaN in the memory would spread to all later segments.
                value = ops.where(ops.isfinite(value), value, 0)
            variable.assign(value)
        return outputs

    def _with_known_rows(self, x):
        """Return an input (B, ...) with a static number of rows, which inputs from generators lack."""
        return x if x.shape[0] is not None else ops.reshape(x, (self.batch_size, *ops.shape(x)[1:]))

    def reset_state(self) -> None:
        """Clear the segment memory."""
        for name, empty in self.model.init_memory(self.batch_size).items():
            self._memory[name].assign(empty)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.model.compute_output_shape(input_shape)

    def get_config(self) -> Config:
        return self.base_config("batch_size")
