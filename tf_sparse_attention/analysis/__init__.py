"""Tools to inspect models: causality audits, plots of patterns and learned spans, and divergence between heads.

Also: KV-cache sizes, attention weights, use of clusters and spans, head importance, cost, kernels in use, and the first
nonfinite values.
"""

from tf_sparse_attention.analysis.attention_weights import attention_weights
from tf_sparse_attention.analysis.cache_sizes import CacheSize, CacheSizes, cache_sizes
from tf_sparse_attention.analysis.causality import (
    CausalityError,
    CausalityReport,
    Leak,
    assert_causal,
    causality_report,
)
from tf_sparse_attention.analysis.cost import Cost, LayerCost, cost
from tf_sparse_attention.analysis.divergence import HeadDivergence, head_divergence
from tf_sparse_attention.analysis.head_importance import HeadImportance, HeadLoss, head_importance
from tf_sparse_attention.analysis.health import Health, RoutedHead, Spans, health
from tf_sparse_attention.analysis.kernel_report import AttentionKernel, KernelReport, kernel_report
from tf_sparse_attention.analysis.nonfinite import Nonfinite, find_nonfinite
from tf_sparse_attention.analysis.pictures import draw_pattern, draw_weights
from tf_sparse_attention.analysis.pixel_attention import pixel_attention
from tf_sparse_attention.analysis.spans import draw_spans
from tf_sparse_attention.analysis.suggest import Choice, Suggestion, suggest
from tf_sparse_attention.analysis.word_routes import WordRoute, WordRoutes, word_routes
from tf_sparse_attention.layers.attention.attention_checks import num_cached_tokens

__all__ = [
    "AttentionKernel",
    "CacheSize",
    "CacheSizes",
    "CausalityError",
    "CausalityReport",
    "Choice",
    "Cost",
    "HeadDivergence",
    "HeadImportance",
    "HeadLoss",
    "Health",
    "KernelReport",
    "LayerCost",
    "Leak",
    "Nonfinite",
    "RoutedHead",
    "Spans",
    "Suggestion",
    "WordRoute",
    "WordRoutes",
    "assert_causal",
    "attention_weights",
    "cache_sizes",
    "causality_report",
    "cost",
    "draw_pattern",
    "draw_spans",
    "draw_weights",
    "find_nonfinite",
    "head_divergence",
    "head_importance",
    "health",
    "kernel_report",
    "num_cached_tokens",
    "pixel_attention",
    "suggest",
    "word_routes",
]
__dir__ = __all__.copy  # without the submodules
