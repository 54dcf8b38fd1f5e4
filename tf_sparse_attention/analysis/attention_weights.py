"""The attention weights of a whole model."""

from typing import Any

import keras
import numpy as np

from tf_sparse_attention.analysis.attention_rows import record_attentions


def attention_weights(model: keras.layers.Layer, batch: Any) -> list[np.ndarray]:
    """Return how much each query of a model looks at each key, in every attention of one call.

    For pictures of short sequences: O(T S) memory for each head, whatever the pattern. With successor values what is
    read is the value after a match, and the weight is that of the token whose value it is.

    Args:
        model: Keras model or layer with attention layers of this library, such as a `LanguageModel`, a
            `SpeechRecognizer`, or a `SequenceToSequence`, whose decoder's blocks have their own attention first and
            then that to the encoder.
        batch: what it is called with.

    Returns:
        In the order of the calls float arrays (B, N, T, S), N the heads, T the queries and S the keys, 0 for keys that
        a query does not see.

    Raises:
        ValueError: if there are no such layers, or one whose heads share their keys and values, and for a batch that is
            no arrays.

    Example:
        >>> heads = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 4}
        >>> backbone = tsa.models.Backbone(258, num_layers=3, hidden_dim=16, attention=[heads])
        >>> weights = attention_weights(tsa.models.LanguageModel(backbone), np.ones((1, 20), "int32"))
        >>> len(weights), weights[0].shape, int((weights[0][0, 0, 19] > 0).sum())
        (3, (1, 2, 20, 20), 4)
    """
    attentions = record_attentions(model, batch)
    return [np.concatenate([rows for _, rows in each.rows()], axis=2) for each in attentions]
