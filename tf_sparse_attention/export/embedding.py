"""The signature `embed`: texts as vectors."""

import tensorflow as tf

from tf_sparse_attention.export.scoring import TEXT
from tf_sparse_attention.export.windows import sums_of_windows


def embed_function(model, tokenizer, weights, sequence_length, batch_size):
    """Returns the signature as a `tf.function`; see `export_saved_model`."""
    backbone = model.backbone
    if backbone.max_length is not None:
        sequence_length = min(sequence_length, backbone.max_length - 1)  # beside the start id

    def sum_of_vectors(tokens, real):
        # After the start id, so that the vector at a token has read it and those before.
        inputs = tf.pad(tokens, [[0, 0], [1, 0]], constant_values=tokenizer.start_id)
        mask = tf.pad(real, [[0, 0], [1, 0]], constant_values=True)
        vectors = backbone({"token_ids": inputs, "padding_mask": mask}, training=False)[:, 1:]
        return tf.reduce_sum(tf.where(real[..., None], tf.cast(vectors, tf.float64), 0), axis=1)

    def embed(text):
        ids = tokenizer.tokenize(text)
        size = (backbone.hidden_dim,)
        with weights.in_place():
            sums = sums_of_windows(ids, tf.size(text), sequence_length, batch_size, sum_of_vectors, size)
        num_tokens = ids.row_lengths()
        embedding = tf.math.divide_no_nan(sums, tf.cast(num_tokens, tf.float64)[:, None])
        return {"embedding": tf.cast(embedding, tf.float32), "num_tokens": tf.cast(num_tokens, tf.int32)}

    return tf.function(embed, input_signature=[TEXT], autograph=False)
