"""Pairs as one sequence each, the target after its source: for language models, which are scored on targets alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf


def join_pairs(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], num_rows: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of pairs, int32 (B, length), source and target one after the other, and which are of targets.

    Args:
        pairs: the ids of each source and target, of no more than `length` together.
        num_rows: B, no less than the pairs; further rows are empty.
        length: positions of a row, padded with 0 on the right.
    """
    ids, is_target = np.zeros((num_rows, length), np.int32), np.zeros((num_rows, length), bool)
    for row, (source, target) in enumerate(pairs):
        end = len(source) + len(target)
        ids[row, : len(source)], ids[row, len(source) : end] = source, target
        is_target[row, len(source) : end] = True
    return ids, is_target


def pack_prefixes(ids: "tf.Tensor", is_target: "tf.Tensor") -> "tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]":
    """Returns inputs, targets and weights of a language model that is scored on a part of its tokens.

    Args:
        ids: int32 (B, T), 0 for padding on the right.
        is_target: bool (B, T), the tokens that are scored; those before them are read alone.

    Returns:
        `(inputs, targets, weights)`: inputs {"token_ids", "padding_mask"}, the ids moved right by one with id 0 first;
        targets the ids where `is_target` and 0 elsewhere, so that a loss is the mean over them alone; weights float32
        (B, T), 1 where `is_target`.
    """
    import tensorflow as tf

    exists = tf.not_equal(ids, 0)
    before = tf.where(exists, tf.pad(ids[:, :-1], [[0, 0], [1, 0]]), 0)
    return {"token_ids": before, "padding_mask": exists}, tf.where(is_target, ids, 0), tf.cast(is_target, tf.float32)
