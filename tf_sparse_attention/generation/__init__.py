"""Continuing rows of tokens, for any step function and its cache: no file here knows a model."""

from tf_sparse_attention.generation.beam_search import Beams, beam_search
from tf_sparse_attention.generation.loop import Generated, Progress, advance, begin, bucket_length, generate
from tf_sparse_attention.generation.random_keys import fold_in, row_keys, uniform
from tf_sparse_attention.generation.repetition import block_ngrams, penalize_repetition
from tf_sparse_attention.generation.samplers import (
    check_settings,
    greedy,
    keep_likely,
    keep_nucleus,
    keep_top_k,
    sample,
)
from tf_sparse_attention.generation.strategies import BeamSearch, Repetition, Sampling, strategy_of

__all__ = [
    "BeamSearch",
    "Beams",
    "Generated",
    "Progress",
    "Repetition",
    "Sampling",
    "advance",
    "beam_search",
    "begin",
    "block_ngrams",
    "bucket_length",
    "check_settings",
    "fold_in",
    "generate",
    "greedy",
    "keep_likely",
    "keep_nucleus",
    "keep_top_k",
    "penalize_repetition",
    "row_keys",
    "sample",
    "strategy_of",
    "uniform",
]
