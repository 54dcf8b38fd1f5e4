"""The functions of tokens in LiteRT and ONNX files: of a language model, and of a decoder that reads a source."""

import numpy as np
import tensorflow as tf

from tf_sparse_attention.export.cache_tensors import CacheTensors
from tf_sparse_attention.export.portable_function import PortableFunction, draw_ids, make_function
from tf_sparse_attention.export.source_functions import Source
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.models.metrics import nats_of

CHECKED_STEPS = 8


def score_function(decoder: LanguageModel, source: Source, batch_size: int, sequence_length: int) -> PortableFunction:
    """Returns the function from a source, if any, and token ids to their nats."""
    tokens = tf.TensorSpec((batch_size, sequence_length), tf.int32, "token_ids")

    def score(*given):
        *of_source, token_ids = given
        # As in training, each token is predicted from those before it, with id 0 at the start.
        before = tf.pad(token_ids[:, :-1], [[0, 0], [1, 0]])
        logits = decoder({"token_ids": before, **source.encode(*of_source)}, training=False)
        return {"nats": nats_of(token_ids, logits)}

    def draw(random, call):
        return {**source.draw(random), **draw_ids(random, tokens, decoder.vocabulary_size)}

    return make_function(score, [*source.inputs, tokens], draw)


def decode_function(decoder: LanguageModel, cache: CacheTensors, batch_size: int) -> PortableFunction:
    """Returns the function from the next token and the cache to the logits after it and what changed in the cache."""
    tokens = tf.TensorSpec((batch_size, 1), tf.int32, "token_ids")
    position = tf.TensorSpec((batch_size,), tf.int32, "index")

    def decode(token_ids, index, *tensors):
        logits, new = decoder.decode(token_ids, cache.nested(tensors), index)
        return {"logits": logits[:, 0], **{f"new_{name}": x for name, x in cache.of_tokens(new).items()}}

    def draw(random, call):
        ids = draw_ids(random, tokens, decoder.vocabulary_size)
        return {**ids, position.name: np.full(position.shape, call, "int32")}

    return make_function(decode, [tokens, position, *cache.inputs], draw, CHECKED_STEPS)
