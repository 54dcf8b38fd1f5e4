"""Decoding: samplers, beam search, CTC decoding, and a generation loop.

The loop and the beam search accept any step function, with or without a cache, so no model class is needed.
"""

from tf_sparse_attention.generation.beam_search import Beams, beam_search
from tf_sparse_attention.generation.ctc import Transcript, ctc_beam_search, ctc_greedy
from tf_sparse_attention.generation.loop import Generated, Progress, advance, begin, bucket_length, generate
from tf_sparse_attention.generation.samplers import (
    block_ngrams,
    check_settings,
    greedy,
    keep_likely,
    keep_nucleus,
    keep_top_k,
    penalize_repetition,
    sample,
)
from tf_sparse_attention.generation.speculative import SpeculativeState, speculate
from tf_sparse_attention.generation.strategies import (
    BeamSearch,
    DecodingConfig,
    Sampling,
    Speculative,
    get_strategy,
)
from tf_sparse_attention.ops.random_bits import fold_in, row_keys, uniform

__all__ = [
    "BeamSearch",
    "Beams",
    "DecodingConfig",
    "Generated",
    "Progress",
    "Sampling",
    "Speculative",
    "SpeculativeState",
    "Transcript",
    "advance",
    "beam_search",
    "begin",
    "block_ngrams",
    "bucket_length",
    "check_settings",
    "ctc_beam_search",
    "ctc_greedy",
    "fold_in",
    "generate",
    "get_strategy",
    "greedy",
    "keep_likely",
    "keep_nucleus",
    "keep_top_k",
    "penalize_repetition",
    "row_keys",
    "sample",
    "speculate",
    "uniform",
]
__dir__ = __all__.copy  # without the submodules
