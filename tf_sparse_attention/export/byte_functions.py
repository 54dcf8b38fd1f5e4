"""What SavedModels of bytes that are no text have in common: those of images and of sound."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data import AudioCodec, ImageCodec
from tf_sparse_attention.export.language_model import check_causal
from tf_sparse_attention.export.sampling_loop import MAX_ROWS, bucket
from tf_sparse_attention.generation import row_keys
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.types import Tensor

SETTINGS = {"temperature": tf.float32, "top_p": tf.float32, "seed": tf.int32}


def check_byte_model(
    model: LanguageModel,
    codec: Any,
    kind: type[AudioCodec | ImageCodec],
    batch_size: int,
    jit_compile: bool,
    weight_dtype: str | None,
) -> None:
    """Raises a `ValueError` unless the model has the ids of a codec of this kind, and the settings are right."""
    check_causal(model)
    if not isinstance(codec, kind):
        raise ValueError(f"`codec` must be an `{kind.__name__}`. Received: {codec!r}.")
    if model.backbone.vocabulary_size < codec.vocabulary_size:
        raise ValueError(
            f"`model` must have the {codec.vocabulary_size} ids of the codec. "
            f"Received: {model.backbone.vocabulary_size}."
        )
    checks.check_count("batch_size", batch_size)
    checks.check_switch("jit_compile", jit_compile)
    checks.check_choice("weight_dtype", weight_dtype, (None, "int8"))


def scalars(dtypes: Mapping[str, tf.DType]) -> list[tf.TensorSpec]:
    """Returns what describes inputs that are scalars, of dtypes by name."""
    return [tf.TensorSpec((), dtype, name) for name, dtype in dtypes.items()]


def draw_rows(
    loop: Callable,
    ids: Tensor,
    num_given: Tensor,
    limit: Tensor | int,
    most: int,
    settings: Sequence[Tensor],
    assertions: Sequence[tf.Operation],
) -> tuple[Tensor, Tensor]:
    """Returns rows of ids, of which the first are given and the others drawn, and the log-probabilities of these.

    Args:
        loop: from `decoding_loop`.
        ids: int32 (B, W) that begin with those that are given.
        num_given: int32 (B,), how many.
        limit: ids of a row that is complete, at most W.
        most: maximal `limit`.
        settings: temperature, top_p and seed.
        assertions: the checks of the inputs, before which nothing is compiled for their sizes.

    Returns:
        int32 (B, W), of which those up to the limit are right, and float32 (B,).
    """
    temperature, top_p, seed = settings
    with tf.control_dependencies(assertions):
        count = tf.shape(ids)[0]
        size = bucket(count, 1, MAX_ROWS)
        longest = bucket(tf.reduce_max(tf.concat([num_given, [1]], axis=0)), 64, most)
    missing = [0, size - count]  # rows that pad the batch are finished from the start
    buffer, lengths = tf.pad(ids, [missing, [0, 0]]), tf.pad(num_given, [missing])
    limits = tf.pad(tf.fill([count], limit), [missing])
    rows = loop(buffer[:, :longest], buffer, lengths, limits, row_keys(seed, size), temperature, top_p)
    return rows[0][:count], rows[2][:count]
