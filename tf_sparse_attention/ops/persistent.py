"""Persistent vectors as the keys and values of attention (Sukhbaatar et al. 2019, "Augmenting self-attention")."""

from keras import ops

from tf_sparse_attention.ops.attend import Dropout, attend_shared_keys
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Tensor


def attend_persistent(query: Tensor, persistent: tuple[Tensor, Tensor], dropout: Dropout | None = None) -> Tensor:
    """Computes attention to persistent vectors alone, O(T M).

    Args:
        query: scaled queries (B, N, T, H).
        persistent: pair (key, value) of tensors (N, M, H) and (N, M, Hv).
        dropout: an `attend.Dropout`, or None.

    Returns:
        Tensor (B, N, T, Hv).
    """
    return attend_shared_keys(query, *persistent, dropout=dropout).output


def one_head(x: Tensor) -> Tensor:
    """Returns heads (B, N, T, H) as a single one, (B, 1, T, N H)."""
    batch, heads, length, size = shape(x)
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, 1, length, heads * size))


def split_head(x: Tensor, num_heads: int) -> Tensor:
    """Returns a single head (B, 1, T, N H) as `num_heads` ones, (B, N, T, H): the inverse of `one_head`."""
    batch, _, length, size = shape(x)
    return ops.transpose(ops.reshape(x, (batch, length, num_heads, size // num_heads)), (0, 2, 1, 3))
