"""Optimizers and learning-rate schedules as published, and the norm of gradients."""

from tf_sparse_attention.optimizers.adafactor import Adafactor
from tf_sparse_attention.optimizers.adagrad import Adagrad
from tf_sparse_attention.optimizers.gradient_norm import GradientNorm
from tf_sparse_attention.optimizers.schedules import Constant, Noam, RsqrtNormalizedDecay

__all__ = ["Adafactor", "Adagrad", "Constant", "GradientNorm", "Noam", "RsqrtNormalizedDecay"]
__dir__ = __all__.copy  # without the modules inside
