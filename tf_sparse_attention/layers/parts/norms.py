"""The norms of blocks: where they stand and of which kind they are, in one word."""

import keras

# Before a sublayer, after its residual, or before it and on its result; layer norms, or by the root mean square alone,
# without a mean and a bias.
NORMS = ("pre", "post", "pre_and_post", "pre_rms", "post_rms", "pre_and_post_rms")


def is_before(norm: str) -> bool:
    """Returns whether one of `NORMS` stands before its sublayer."""
    return norm.startswith("pre")


def is_around(norm: str) -> bool:
    """Returns whether one of `NORMS` stands before its sublayer and, once more, on what the sublayer returns."""
    return norm.startswith("pre_and_post")


def make_norm(norm: str, epsilon: float, name: str, dtype: keras.DTypePolicy) -> keras.layers.Layer:
    """Returns a layer of the kind that one of `NORMS` says."""
    kind = keras.layers.RMSNormalization if norm.endswith("rms") else keras.layers.LayerNormalization
    return kind(epsilon=epsilon, name=name, dtype=dtype)
