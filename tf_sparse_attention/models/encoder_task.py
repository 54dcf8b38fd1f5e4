"""The base of models that read an encoder's vectors with a small head: of classes, and of spans."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.models.token_ids import CheckedInputs
from tf_sparse_attention.types import Config, Tensor


class EncoderTask(CheckedInputs, Model):
    """An encoder, dropout, and a dense layer on its vectors.

    Args:
        encoder: a bidirectional `Backbone`, an `Encoder`, a backbone of KerasHub, dense or with its attention replaced,
            or another `keras.Model` whose output is float (B, T, D) or a dictionary with "sequence_output". It has
            `hidden_dim`, or is functional.
        num_outputs: outputs of the dense layer.
        dropout: rate before the dense layer, in training. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Raises:
        ValueError: for a wrong argument, and for a backbone that is causal.
    """

    def __init__(self, encoder: keras.layers.Layer, num_outputs: int, dropout: float = 0.0, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # ids given as floats would be rounded to half precision
        checks.check_rate("dropout", dropout)
        size = _hidden_dim_of(encoder)
        self.encoder = encoder
        self.dropout = dropout
        self.head_dropout = keras.layers.Dropout(dropout, name="head_dropout", dtype=self.dtype_policy)
        self.head = keras.layers.Dense(num_outputs, name="head", dtype=sublayer_policy(self, "head"))
        self.head.build((None, size))
        self.built = True

    @property
    def backbone(self) -> Any:
        """The encoder, by the name that other models have for what their outputs are made of."""
        return self.encoder

    @property
    def vocabulary_size(self) -> int | None:  # type: ignore[override]  # computed, where others keep it
        """The number of token ids; None where the encoder does not say it."""
        return getattr(self.encoder, "vocabulary_size", None)

    def encode(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        """Returns the outputs of the encoder by name, "sequence_output" (B, T, D) among them."""
        outputs = self.encoder(inputs, training=training)
        return outputs if isinstance(outputs, dict) else {"sequence_output": outputs}

    def logits(self, vectors: Tensor, training: bool | None = None) -> Tensor:
        """Returns what the head makes of vectors (..., D): float32 (..., outputs)."""
        return ops.cast(self.head(self.head_dropout(vectors, training=training)), "float32")

    def get_config(self) -> Config:
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {**self.base_config(), "encoder": encoder, "dropout": self.dropout}

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> "EncoderTask":
        encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects=custom_objects)
        return cls(**{**config, "encoder": encoder})


def padding_mask_of(inputs: Tensor | dict[str, Tensor]) -> Tensor | None:
    """Returns the padding mask among the inputs as bool (B, T), or None."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    return None if mask is None else ops.cast(mask, "bool")


def _hidden_dim_of(encoder):
    """Returns the size of the vectors of an encoder, or raises a `ValueError` for what is none."""
    if not isinstance(encoder, keras.layers.Layer):
        raise ValueError(f"`encoder` must be a model that returns vectors (B, T, D). Received: encoder={encoder!r}.")
    if getattr(encoder, "causal", False):
        raise ValueError("`encoder` must see later tokens too: a `Backbone` with causal=False. Received: causal=True.")
    size = getattr(encoder, "hidden_dim", None)
    outputs = getattr(encoder, "output", None) if size is None and encoder.built else None
    outputs = outputs.get("sequence_output") if isinstance(outputs, dict) else outputs
    if size is None and outputs is not None and len(getattr(outputs, "shape", ())) == 3:
        size = outputs.shape[-1]
    if size is None:
        raise ValueError(
            "`encoder` must have an attribute `hidden_dim`, the size D of its vectors, or be a functional model that "
            f"returns (B, T, D), alone or as 'sequence_output'. Received: encoder={encoder!r}."
        )
    return size
