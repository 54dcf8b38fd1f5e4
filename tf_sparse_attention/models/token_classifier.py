"""Classes of tokens, by an encoder."""

from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.models.encoder_task import EncoderTask
from tf_sparse_attention.types import Config, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class TokenClassifier(EncoderTask):
    """Logits of the class of each token, such as its part of speech: a dense layer on an encoder's vectors.

    Tokens that have no class, such as padding and all but the first piece of a word, get a target that the loss
    ignores: `keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)`.

    Args:
        encoder: as for `SequenceClassifier`.
        num_classes: C.
        dropout: rate before the dense layer, in training. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: what the encoder reads, as for `SequenceClassifier`; with "segment_ids" of packed documents, where it
            takes them.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, T, C).

    Raises:
        ValueError: for a wrong argument, and for a backbone that is causal.

    Example:
        >>> part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 16}
        >>> encoder = tsa.models.Backbone(100, 2, 16, [part], intermediate_dim=32, causal=False)
        >>> tuple(TokenClassifier(encoder, num_classes=3)(keras.ops.ones((2, 20), "int32")).shape)
        (2, 20, 3)
    """

    def __init__(self, encoder: keras.layers.Layer, num_classes: int, dropout: float = 0.0, **kwargs: Any) -> None:
        checks.check_count("num_classes", num_classes)
        super().__init__(encoder, num_classes, dropout, **kwargs)
        self.num_classes = num_classes

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        return self.logits(self.encode(inputs, training)["sequence_output"], training)

    def get_config(self) -> Config:
        return {**super().get_config(), "num_classes": self.num_classes}
