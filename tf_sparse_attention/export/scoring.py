"""The signature `score`, which returns the likelihood of texts."""

import math
from collections.abc import Callable

import tensorflow as tf

from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.token_rows import sum_over_windows
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.types import Tensor

TEXT = tf.TensorSpec((None,), tf.string, "text")


def score_function(
    model: LanguageModel, tokenizer: Tokenizer, weights: Weights, sequence_length: int, batch_size: int
) -> Callable:
    """Returns the signature as a `tf.function`; see `export_saved_model`."""
    nats_of = window_nats(model, tokenizer.start_id)

    def score(text):
        ids = tokenizer.tokenize(text)
        with weights.scope():
            nats = sum_over_windows(ids, tf.size(text), sequence_length, batch_size, nats_of)
        num_bytes = tf.strings.length(text, unit="BYTE")
        bits_per_byte = tf.math.divide_no_nan(nats, math.log(2) * tf.cast(num_bytes, tf.float64))
        return {
            "bits_per_byte": tf.cast(bits_per_byte, tf.float32),
            "nats": tf.cast(nats, tf.float32),
            "num_bytes": num_bytes,
            "num_tokens": tf.cast(ids.row_lengths(), tf.int32),
        }

    return tf.function(score, input_signature=[TEXT], autograph=False)


def window_nats(model: LanguageModel, start_id: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function for `sum_over_windows`: the nats of the tokens of each window, float64 (S,)."""

    def nats_of(targets, is_real):
        inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]], constant_values=start_id)
        logits = model({"token_ids": tf.where(is_real, inputs, 0), "padding_mask": is_real}, training=False)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(tf.where(is_real, tf.cast(nats, tf.float64), 0), axis=1)

    return nats_of
