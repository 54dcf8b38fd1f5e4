"""Kernels against plain operations on a GPU of the JAX backend, and programs compiled for one."""

import re

import jax
import keras
import numpy as np

from tests.patterns.fused_jax import LAYERS, SIZE, call_of, step_of, used
from tf_sparse_attention.kernels.availability import TRITON, Kernel, use_kernel


def compare(name, seed=0, length=300, dtype="bfloat16"):
    """Compare a layer with itself in float32, by a kernel and by plain operations.

    Returns:
        "ran" (number of kernels), "kernel" and "plain" (errors of output and gradients, see `_apart`), and "repeats"
        (whether a second run gives the same bits).
    """
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(2, 2, length, SIZE)).astype("float32")
    arguments = call_of(seed, length) | {"use_causal_mask": True}
    exact, layer = made = [_layer(name, policy, x[:, :9]) for policy in ("float32", f"mixed_{dtype}")]
    layer.set_weights(exact.get_weights())
    with use_kernel(None):
        expected, plain = (_both(each, x, weights, arguments)() for each in made)
    with used(Kernel(TRITON)) as ran:
        run = _both(layer, x, weights, arguments)
        found, again = run(), run()
    same = all(bool((a == b).all()) for a, b in zip(found, again, strict=True))
    return {"ran": len(ran), "kernel": _apart(found, expected), "plain": _apart(plain, expected), "repeats": same}


def lower(name):
    """Return the number of Triton programs in the forward and backward pass of a layer, compiled for a GPU."""
    x = np.ones((2, 1700 if name == "union" else 600, SIZE), "float32")
    arguments = call_of(0 if name == "union" else 3, x.shape[1]) | {"use_causal_mask": True}
    layer = _layer(name, "mixed_bfloat16", x[:, :9])
    with use_kernel(Kernel(TRITON)):
        step, states = step_of(layer, x, arguments)
        text = step.trace(x, states).lower(lowering_platforms=("cuda",)).as_text()
    return len(re.findall("custom_call @[^(]*triton", text))


def _layer(name, policy, x):
    """Return a layer of a dtype policy, called once."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        layer = LAYERS[name]()
        layer(x, use_causal_mask=True)
    finally:
        keras.config.set_dtype_policy(before)
    return layer


def _both(layer, x, weights, arguments):
    """Return a function that computes the output of a layer and its gradients."""
    step, states = step_of(layer, weights, arguments)

    def run():
        (_, output), gradients = step(x, states)
        return [output, *jax.tree.leaves(gradients)]

    return run


def _apart(found, expected):
    """Return the relative errors of the output and of all gradients together."""
    found, expected = ([np.asarray(x, "float32").ravel() for x in arrays] for arrays in (found, expected))
    parts = [(found[0], expected[0]), (np.concatenate(found[1:]), np.concatenate(expected[1:]))]
    return [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in parts]
