"""The signature `embed`, which returns a vector for each text."""

from collections.abc import Callable

import tensorflow as tf

from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.scoring import TEXT
from tf_sparse_attention.export.token_rows import sum_over_windows
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import LanguageModel


def embed_function(
    model: LanguageModel, tokenizer: Tokenizer, weights: Weights, sequence_length: int, batch_size: int
) -> Callable:
    """Returns the signature as a `tf.function`; see `export_saved_model`."""
    backbone = model.backbone
    if backbone.max_length is not None:
        sequence_length = min(sequence_length, backbone.max_length - 1)  # one position is for the start id

    def sum_of_vectors(tokens, is_real):
        # With the start id first, the vector at each token depends on it and those before.
        inputs = tf.pad(tokens, [[0, 0], [1, 0]], constant_values=tokenizer.start_id)
        mask = tf.pad(is_real, [[0, 0], [1, 0]], constant_values=True)
        vectors = backbone({"token_ids": inputs, "padding_mask": mask}, training=False)[:, 1:]
        return tf.reduce_sum(tf.where(is_real[..., None], tf.cast(vectors, tf.float64), 0), axis=1)

    def embed(text):
        ids = tokenizer.tokenize(text)
        size = (backbone.hidden_dim,)
        with weights.scope():
            sums = sum_over_windows(ids, tf.size(text), sequence_length, batch_size, sum_of_vectors, size)
        num_tokens = ids.row_lengths()
        embedding = tf.math.divide_no_nan(sums, tf.cast(num_tokens, tf.float64)[:, None])
        return {"embedding": tf.cast(embedding, tf.float32), "num_tokens": tf.cast(num_tokens, tf.int32)}

    return tf.function(embed, input_signature=[TEXT], autograph=False)
