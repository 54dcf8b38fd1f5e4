"""Optimizers and learning-rate schedules of published models, and mixins for gradient norms and nonfinite updates."""

from tf_sparse_attention.optimizers.adafactor import Adafactor
from tf_sparse_attention.optimizers.adagrad import Adagrad
from tf_sparse_attention.optimizers.mixins import GradientNorm, SkipNonfinite
from tf_sparse_attention.optimizers.schedules import Constant, Noam, RsqrtNormalizedDecay

__all__ = ["Adafactor", "Adagrad", "Constant", "GradientNorm", "Noam", "RsqrtNormalizedDecay", "SkipNonfinite"]
__dir__ = __all__.copy  # without submodules
