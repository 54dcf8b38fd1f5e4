"""Causal windows by cuDNN's kernel beside plain operations, on a GPU of the JAX backend."""

import jax
import keras
import numpy as np

from tf_sparse_attention import layers
from tf_sparse_attention.kernels import cudnn
from tf_sparse_attention.kernels.choice import CUDNN, Kernel, use_kernel

# (length, window, key_dim, dtype): odd lengths, the shortest, a window of everything, the sizes of heads at both ends.
CASES = [
    (256, 50, 64, "bfloat16"),
    (777, 1, 64, "bfloat16"),
    (1001, 17, 8, "bfloat16"),
    (1024, 256, 128, "bfloat16"),
    (2048, 3000, 64, "bfloat16"),
    (4096, 256, 96, "bfloat16"),
    (8192, 512, 64, "bfloat16"),
    (512, 100, 64, "float16"),
    (1023, 255, 40, "float16"),
    (4096, 1024, 128, "float16"),
]


def compare(length, window, key_dim, dtype):
    """Returns how far the layer is from itself in float32, by cuDNN and by plain operations, and what ran.

    Returns:
        "ran" (how often cuDNN's kernel was asked for), "kernel" and "plain" (each the largest difference, see `_apart`),
        and "repeats" (whether a second run gave the same bits).
    """
    rng = np.random.default_rng(length)
    x, weights = rng.normal(size=(2, 2, length, 48)).astype("float32")
    dtypes = ("float32", f"mixed_{dtype}")
    exact, layer = (layers.LocalAttention(3, key_dim, window=window, position="rotary", dtype=d) for d in dtypes)
    for each in (exact, layer):
        each.build(x.shape)
    layer.set_weights(exact.get_weights())
    ran, attend = [], cudnn.attend_band
    cudnn.attend_band = lambda *args: ran.append(args[-1]) or attend(*args)
    try:
        with use_kernel(None):
            expected, plain = _both(exact, x, weights)(), _both(layer, x, weights)()
        with use_kernel(Kernel(CUDNN)):
            run = _both(layer, x, weights)
            found, again = run(), run()
    finally:
        cudnn.attend_band = attend
    same = all(bool((a == b).all()) for a, b in zip(found, again, strict=True))
    return {"ran": len(ran), "kernel": _apart(found, expected), "plain": _apart(plain, expected), "repeats": same}


def _both(layer, x, weights):
    """Returns a compiled call that returns the output of a layer and its gradients."""
    x = x.astype(layer.compute_dtype)
    states = [[v.value for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables)]

    def loss(x, trainable):
        output, _ = layer.stateless_call(trainable, states[1], x, use_causal_mask=True)
        return (keras.ops.sin(keras.ops.cast(output, "float32")) * weights).sum(), output

    step = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))

    def run():
        (_, output), gradients = step(x, states[0])
        return [output, *jax.tree.leaves(gradients)]

    return run


def _apart(found, expected):
    """Returns the largest difference of outputs and of gradients, by the largest number of each; NaN if there is one."""
    pairs = [(np.asarray(a, "float32"), np.asarray(b, "float32")) for a, b in zip(found, expected, strict=True)]
    return float(np.max([_relative(pairs[:1]), _relative(pairs[1:])]))


def _relative(pairs):
    return np.max([abs(a - b).max() for a, b in pairs]) / max(abs(b).max() for _, b in pairs)
