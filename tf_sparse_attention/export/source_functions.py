"""The functions of a source in LiteRT and ONNX files: an encoder reads it, and a decoder keeps what it needs of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_sparse_attention.export.cache_tensors import CacheTensors
from tf_sparse_attention.export.portable_function import PortableFunction, draw_counts, draw_ids, make_function
from tf_sparse_attention.models import SequenceToSequence


class Source(NamedTuple):
    """What a decoder reads beside its tokens.

    Attributes:
        inputs: list of `tf.TensorSpec`, what is given of a source.
        encode: function of the tensors of `inputs` to further inputs of the decoder, by name.
        draw: function of a `np.random.Generator` to arrays for `inputs`, by name.
        length: S, tokens of a source. None: there is none.
    """

    inputs: list[tf.TensorSpec]
    encode: Callable[..., dict[str, Any]]
    draw: Callable[..., dict[str, Any]]
    length: int | None


NO_SOURCE = Source([], encode=lambda: {}, draw=lambda random: {}, length=None)


def make_source(model: SequenceToSequence, batch_size: int, length: int) -> Source:
    """Returns the `Source` of an encoder-decoder: rows of token ids, padded at the end to `length`.

    Raises:
        ValueError: for an encoder of features that are no embedded ids.
    """
    size = model.encoder.embedding_dim
    if model.encoder.vocabulary_size is None and size != model.backbone.embedding_dim:
        raise ValueError(
            "`model` must have an encoder that reads token ids, or features that are ids embedded by the decoder. "
            f"Received: an encoder of features of size {size}."
        )
    ids = tf.TensorSpec((batch_size, length), tf.int32, "source_ids")
    counts = tf.TensorSpec((batch_size,), tf.int32, "num_source_tokens")

    def encode(source_ids, num_source_tokens):
        mask = tf.range(length) < num_source_tokens[:, None]
        return model.encode({"encoder_token_ids": source_ids, "encoder_padding_mask": mask}, training=False)

    def draw(random):
        return {**draw_ids(random, ids, model.source_vocabulary_size), **draw_counts(random, counts, length)}

    return Source([ids, counts], encode, draw, length)


def encode_function(source: Source, cache: CacheTensors) -> PortableFunction:
    """Returns the function from a source to the part of a decoder's cache that does not change, computed once."""

    def encode(*given):
        return cache.of_source(source.encode(*given))

    return make_function(encode, source.inputs, lambda random, call: source.draw(random))
