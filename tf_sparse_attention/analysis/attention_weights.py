"""Attention weights of a whole model."""

from typing import Any

import keras
import numpy as np

from tf_sparse_attention.analysis.attention_rows import record_attentions


def attention_weights(model: keras.layers.Layer, batch: Any) -> list[np.ndarray]:
    """Return the attention weights of every attention in one call of a model.

    Memory is O(T S) per head for any pattern, so this suits short sequences. With successor values (key j has the value
    of token j + 1), the weight is assigned to token j + 1.

    Args:
        model: Keras model or layer with attention layers of this library, such as a `LanguageModel`, a
            `SpeechRecognizer`, or a `SequenceToSequence`. Decoder blocks of a `SequenceToSequence` compute
            self-attention before cross-attention.
        batch: input of the model, an array or a structure of arrays.

    Returns:
        List of float arrays (B, N, T, S) in the order of the calls, for N heads, T queries and S keys; 0 for keys that
        a query does not see.

    Raises:
        ValueError: See `record_attentions`: no attention layers, unsupported heads, or a batch without arrays.

    Example:
        >>> heads = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 4}
        >>> backbone = tsa.models.Backbone(258, num_layers=3, hidden_dim=16, attention=[heads])
        >>> weights = attention_weights(tsa.models.LanguageModel(backbone), np.ones((1, 20), "int32"))
        >>> len(weights), weights[0].shape, int((weights[0][0, 0, 19] > 0).sum())
        (3, (1, 2, 20, 20), 4)
    """
    attentions = record_attentions(model, batch)
    return [np.concatenate([rows for _, rows in each.rows()], axis=2) for each in attentions]
