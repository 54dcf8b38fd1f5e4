"""Adafactor as published, the learning-rate schedules of the papers, and a look at the size of gradients."""

from tf_sparse_attention.optimizers.adafactor import Adafactor
from tf_sparse_attention.optimizers.gradient_norm import GradientNorm
from tf_sparse_attention.optimizers.schedules import Constant, Noam, RsqrtNormalizedDecay

__all__ = ["Adafactor", "Constant", "GradientNorm", "Noam", "RsqrtNormalizedDecay"]
