"""The window of cuDNN's attention, through JAX, on GPUs."""

from keras import ops

from tf_sparse_attention.types import Tensor

DTYPES = ("bfloat16", "float16")
LARGEST_HEAD = 128
IMPLEMENTATION = "cudnn"


def attend_band(query: Tensor, key: Tensor, value: Tensor, before: int) -> Tensor:
    """Returns causal softmax attention of each query over itself and the `before` keys before it.

    Args:
        query: scaled queries (B, N, T, H), of one of `DTYPES`.
        key: (B, N, T, H).
        value: (B, N, T, H).
        before: an integer.
    """
    import jax

    query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, key, value))
    window = {"is_causal": True, "local_window_size": (before, 0)}
    output = jax.nn.dot_product_attention(query, key, value, scale=1.0, implementation=IMPLEMENTATION, **window)
    return ops.swapaxes(output, 1, 2)
