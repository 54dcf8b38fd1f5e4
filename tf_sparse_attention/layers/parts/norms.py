"""The norms of blocks: where they stand and of which kind they are, in one word."""

import keras

# Before a sublayer or after its residual; layer norms, or divided by the root mean square, without a mean and a bias.
NORMS = ("pre", "post", "pre_rms", "post_rms")


def is_before(norm: str) -> bool:
    """Returns whether one of `NORMS` stands before its sublayer."""
    return norm.startswith("pre")


def make_norm(norm: str, epsilon: float, name: str, dtype: keras.DTypePolicy) -> keras.layers.Layer:
    """Returns a layer of the kind that one of `NORMS` says."""
    kind = keras.layers.RMSNormalization if norm.endswith("rms") else keras.layers.LayerNormalization
    return kind(epsilon=epsilon, name=name, dtype=dtype)
