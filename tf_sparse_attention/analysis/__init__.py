"""Tools to look at a model: the causality audit, pictures of patterns and of learned spans, how far heads differ."""

from tf_sparse_attention.analysis.causality import assert_causal, causality_report
from tf_sparse_attention.analysis.causality_report import CausalityError, CausalityReport, Leak
from tf_sparse_attention.analysis.divergence import HeadDivergence, head_divergence
from tf_sparse_attention.analysis.pictures import draw_pattern, draw_weights
from tf_sparse_attention.analysis.spans import draw_spans

__all__ = [
    "CausalityError",
    "CausalityReport",
    "HeadDivergence",
    "Leak",
    "assert_causal",
    "causality_report",
    "draw_pattern",
    "draw_spans",
    "draw_weights",
    "head_divergence",
]
