"""Causality audit of layers and models."""

from tf_sparse_attention.analysis.causality.audit import assert_causal, causality_report
from tf_sparse_attention.analysis.causality.report import CausalityError, CausalityReport, Leak

__all__ = ["CausalityError", "CausalityReport", "Leak", "assert_causal", "causality_report"]
