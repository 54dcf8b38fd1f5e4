"""From texts to what an encoder with a head reads."""

from typing import Any

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.export.input_checks import check_kind
from tf_sparse_attention.export.language_model import check_tokenizer
from tf_sparse_attention.models import Backbone, Encoder
from tf_sparse_attention.models.encoder_task import EncoderTask
from tf_sparse_attention.types import Tensor

READ = ("token_ids", "padding_mask")
SEGMENTS = "segment_ids"  # of encoders of KerasHub, zeros for one text


def check_encoder_task(
    model: EncoderTask, kinds: tuple[type, ...], tokenizer: Tokenizer, sequence_length: int, weight_dtype: str | None
) -> None:
    """Raises a `ValueError` unless a model of these kinds can be exported with these arguments."""
    check_kind(model, "A SavedModel", kinds)
    check_tokenizer("tokenizer", tokenizer, model.vocabulary_size)
    checks.check_choice("weight_dtype", weight_dtype, (None, "int8"))
    checks.check_count("sequence_length", sequence_length)
    limit = getattr(model.encoder, "max_length", None)
    if sequence_length < 4 or (limit is not None and sequence_length > limit):
        most = "" if limit is None else f" to {limit}, the positions of the model"
        raise ValueError(f"`sequence_length` must be from 4{most}. Received: sequence_length={sequence_length}.")
    check_inputs(model)


def check_inputs(model: EncoderTask) -> None:
    """Raises a `ValueError` unless the encoder of a model reads what `encoder_inputs` makes."""
    other = _inputs_of(model.encoder) - {*READ, SEGMENTS}
    if other:
        raise ValueError(
            f"`model` must have an encoder that reads a dictionary of {READ[0]!r}, {READ[1]!r} and perhaps "
            f"{SEGMENTS!r}. Others can be exported by `model.export`, which reads ids. Received: {sorted(other)}."
        )


def _inputs_of(encoder):
    """Returns the names of what an encoder reads; those of the library take what they are given."""
    if isinstance(encoder, (Backbone, Encoder)):
        return set(READ)
    given = getattr(encoder, "input", None)
    return set(given) if isinstance(given, dict) else {"a single input"}


def encoder_inputs(model: EncoderTask, ids: Tensor, lengths: Tensor) -> dict[str, Any]:
    """Returns the inputs of a model for rows of ids (B, T), of which so many (B,) are real."""
    mask = tf.range(tf.shape(ids)[1]) < lengths[:, None]
    segments = {SEGMENTS: tf.zeros_like(ids)} if SEGMENTS in _inputs_of(model.encoder) else {}
    return {"token_ids": tf.where(mask, ids, 0), "padding_mask": mask, **segments}


def with_end(ids: tf.RaggedTensor, end_id: int) -> tf.RaggedTensor:
    """Returns rows of ids with one more at the end of each."""
    return tf.concat([ids, constant_column(ids, end_id)], axis=1)


def constant_column(ids: tf.RaggedTensor, value: int) -> tf.RaggedTensor:
    """Returns a row of one id for each row of others."""
    column = tf.fill((ids.nrows(), 1), tf.constant(value, ids.dtype))
    return tf.RaggedTensor.from_tensor(column, row_splits_dtype=ids.row_splits.dtype)


def row_lengths(ids: tf.RaggedTensor) -> Tensor:
    """Returns the lengths of rows, int32 (B,)."""
    return tf.cast(ids.row_lengths(), tf.int32)
