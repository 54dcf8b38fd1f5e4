"""Helpers for tests of `attend`: random numbers, conversion to float64, and a reference softmax."""

import numpy as np
from keras import ops


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def numbers(x):
    return ops.convert_to_numpy(ops.cast(x, "float64"))


def softmax(scores, factor):
    """Return exp(scores) factor divided by its sum, zeros where the factor is zero everywhere, in float64."""
    highest = np.max(scores, axis=-1, where=factor > 0, initial=-np.inf, keepdims=True)
    e = np.where(factor > 0, np.exp(np.where(factor > 0, scores - highest, 0)) * factor, 0)
    return e / np.where(e.sum(-1, keepdims=True) > 0, e.sum(-1, keepdims=True), 1)
