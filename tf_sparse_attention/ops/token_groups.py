"""Tokens in groups, one for each pair of document and cluster or bucket, that attend inside them alone."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import SELF_BIAS, score_dtype
from tf_sparse_attention.ops.shapes import max_over, shape
from tf_sparse_attention.types import Tensor

NO_GROUP = np.iinfo("int32").max  # the group of a token that does not exist; it sorts last


def segment_ranks(*segments: Tensor) -> list[Tensor]:
    """Numbers the documents of each row 0, 1, .. in the order of their ids, whatever the ids are.

    Args:
        *segments: int tensors (B, T_i) that share their ids.

    Returns:
        List of int32 tensors (B, T_i), each number below the sum of the T_i.
    """
    ids = segments[0] if len(segments) == 1 else ops.concatenate(segments, axis=-1)
    order = ops.argsort(ids, axis=-1)
    sorted_ids = ops.take_along_axis(ids, order, axis=-1)
    new = ops.cast(sorted_ids[:, 1:] != sorted_ids[:, :-1], "int32")
    ranks = ops.cumsum(ops.pad(new, [(0, 0), (1, 0)]), axis=-1)
    ranks = ops.take_along_axis(ranks, ops.argsort(order, axis=-1), axis=-1)
    parts, start = [], 0
    for part in segments:
        stop = start + shape(part)[-1]
        parts.append(ranks[:, start:stop])
        start = stop
    return parts


def groups_of(
    clusters: Tensor, num_clusters: int, token_mask: Tensor | None = None, segment_rank: Tensor | None = None
) -> Tensor:
    """Returns the group of each token, one for each pair of document and cluster: int32 (B, N, T), at least 1.

    Args:
        clusters: int32 (B or 1, N, T).
        num_clusters: K.
        token_mask: bool (B, T); tokens masked out are in the group `NO_GROUP`, which no one attends to; or None.
        segment_rank: int32 (B, T) of `segment_ranks`, or None.
    """
    groups = clusters + 1
    if segment_rank is not None:
        groups = groups + segment_rank[:, None, :] * num_clusters
    return groups if token_mask is None else ops.where(token_mask[:, None, :], groups, NO_GROUP)


def groups_of_keys(groups: Tensor) -> Tensor:
    """Returns groups of tokens as those of keys: 0, the group of no query, in place of `NO_GROUP`."""
    return ops.where(groups == NO_GROUP, 0, groups)


def with_self_bias(bias: Tensor | None, own: Tensor) -> Tensor:
    """Returns the bias with `SELF_BIAS` added where a query meets the key of its position.

    Args:
        bias: float, broadcastable to (..., t, s), or None.
        own: bool, likewise: where query and key have one position.
    """
    dtype = "float32" if bias is None else score_dtype(keras.backend.standardize_dtype(bias.dtype))
    own = ops.where(own, ops.cast(SELF_BIAS, dtype), ops.cast(0, dtype))  # float16 could not hold it
    return own if bias is None else ops.cast(bias, dtype) + own


def best_group(scores: Tensor) -> Tensor:
    """Returns the group of the highest score, the lowest of equals: int32 (...) of float (..., K).

    It is `ops.argmax` without its care for the sign of zeros, in operations that every runtime has, and faster: at 32
    groups 2 to 18 times, at 128 up to 2. A row with NaN has any group.
    """
    num_groups = shape(scores)[-1]
    backwards = ops.arange(num_groups - 1, -1, -1, dtype="float32")  # whose maximum takes less time than of integers
    best = ops.cast(scores == max_over(scores, axis=-1, keepdims=True), "float32")
    return num_groups - 1 - ops.cast(max_over(best * backwards, axis=-1), "int32")
