"""Groups that depend on positions alone, for comparison with those that content decides."""

from keras import ops

from tf_sparse_attention.ops.random_bits import threefry, word
from tf_sparse_attention.types import Tensor


def random_groups(positions: Tensor, num_heads: int, num_groups: int, seed: int) -> Tensor:
    """Returns random groups of positions (B, T), int32 (B, N, T): the paper's random ablation.

    A hash of head, position and seed and not a draw, so that a position keeps its group whatever the length, as
    decoding needs.
    """
    heads = ops.cast(ops.arange(num_heads, dtype="int32"), "uint32")[None, :, None]
    positions = ops.cast(positions, "uint32")[:, None, :]
    bits = threefry(word(seed % 2**32), word(0), heads, positions)[0]
    return ops.cast(ops.right_shift(bits, word(1)), "int32") % num_groups
