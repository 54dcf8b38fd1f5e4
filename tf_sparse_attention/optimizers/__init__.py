"""Adafactor as published, and the learning-rate schedules of the papers."""

from tf_sparse_attention.optimizers.adafactor import Adafactor
from tf_sparse_attention.optimizers.schedules import Constant, Noam, RsqrtNormalizedDecay

__all__ = ["Adafactor", "Constant", "Noam", "RsqrtNormalizedDecay"]
