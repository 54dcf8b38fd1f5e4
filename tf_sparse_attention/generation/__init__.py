"""Samplers and decoding loops over a step function; they know no model."""

from tf_sparse_attention.generation.loop import bucket_length, generate
from tf_sparse_attention.generation.random_keys import fold_in, row_keys
from tf_sparse_attention.generation.samplers import (
    check_settings,
    greedy,
    keep_likely,
    keep_nucleus,
    keep_top_k,
    sample,
)

__all__ = [
    "bucket_length",
    "check_settings",
    "fold_in",
    "generate",
    "greedy",
    "keep_likely",
    "keep_nucleus",
    "keep_top_k",
    "row_keys",
    "sample",
]
