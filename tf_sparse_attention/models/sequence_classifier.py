"""Classes of whole sequences, by an encoder."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.models.encoder_task import EncoderTask, padding_mask_of
from tf_sparse_attention.types import Config, Tensor

POOLINGS = ("first", "mean", "pooler")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SequenceClassifier(EncoderTask):
    """Logits of the class of a sequence: a dense layer on one vector that an encoder has of it.

    Args:
        encoder: a bidirectional `Backbone`, an `Encoder`, a backbone of KerasHub, dense or with its attention replaced
            by `tsa.convert.replace_attention`, or another `keras.Model` whose output is float (B, T, D) or a dictionary
            with "sequence_output". It has `hidden_dim`, or is functional.
        num_classes: C.
        pooling: "first" (default), the vector of the first token; "mean", that of all tokens that are no padding, zeros
            where there are none; or "pooler", the encoder's own "pooled_output", as BERT is fine-tuned.
        dropout: rate before the dense layer, in training. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: what the encoder reads: int (B, T), or a dictionary with "token_ids", and "padding_mask" (B, T), zero
            for padding, where rows have different lengths.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, C), for `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.

    Raises:
        ValueError: for a wrong argument, a backbone that is causal, and "pooler" of an encoder that has none.

    Example:
        >>> part = {"layer": "ClusteredAttention", "num_heads": 2, "key_dim": 8, "num_clusters": 4}
        >>> encoder = tsa.models.Backbone(100, 2, 16, [part], intermediate_dim=32, causal=False)
        >>> model = SequenceClassifier(encoder, num_classes=3, pooling="mean")
        >>> tuple(model(keras.ops.ones((2, 20), "int32")).shape)
        (2, 3)
    """

    def __init__(
        self,
        encoder: keras.layers.Layer,
        num_classes: int,
        pooling: str = "first",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        checks.check_count("num_classes", num_classes)
        checks.check_choice("pooling", pooling, POOLINGS)
        super().__init__(encoder, num_classes, dropout, **kwargs)
        self.num_classes = num_classes
        self.pooling = pooling

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        outputs = self.encode(inputs, training)
        if self.pooling == "pooler":
            return self.logits(_pooled(outputs), training)
        vectors = outputs["sequence_output"]
        if self.pooling == "first":
            return self.logits(vectors[:, 0], training)
        return self.logits(_mean(vectors, padding_mask_of(inputs)), training)

    def get_config(self) -> Config:
        return {**super().get_config(), "num_classes": self.num_classes, "pooling": self.pooling}


def _pooled(outputs):
    if "pooled_output" not in outputs:
        raise ValueError(
            "`pooling` must be 'first' or 'mean' for an encoder without a pooler. Received: pooling='pooler', and the "
            f"outputs {sorted(outputs)}."
        )
    return outputs["pooled_output"]


def _mean(vectors, mask):
    """Returns the mean (B, D) of the vectors (B, T, D) that are no padding, summed in float32."""
    x = ops.cast(vectors, "float32")
    if mask is None:
        return ops.mean(x, axis=1)
    total = ops.sum(ops.where(mask[..., None], x, 0), axis=1)
    return total / ops.maximum(ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True), 1)
