"""Forward and backward passes of a `Subject`, for each compilation mode of a backend."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from benchmarks.worker import MODES


class Step(NamedTuple):
    """Forward pass, or forward and backward pass.

    Attributes:
        prepare: function that traces and compiles the pass, without running it.
        run: blocking function that runs the pass and returns its results.
    """

    prepare: Callable
    run: Callable


def step_of(subject, mode, backward):
    """Return the `Step` of a subject on the current Keras backend.

    Args:
        subject: a `Subject`.
        mode: "graph" or "xla" on TensorFlow, "jit" on JAX.
        backward: whether to also compute gradients, for a fixed random gradient of the output. The output is returned
            too, because a compiler would remove an unused forward pass.
    """
    backend = keras.backend.backend()
    if mode not in MODES.get(backend, ()):
        raise ValueError(f"`mode` must be one of {MODES.get(backend, ())} on {backend}. Received: mode={mode!r}.")
    if backend == "jax":
        return _jax_step(subject, backward)
    return _tensorflow_step(subject, mode, backward)


def _upstream(first):
    """Return a gradient of the output, a random array with the shape of the first argument."""
    return np.random.default_rng(7).standard_normal(first.shape, dtype="float32").astype(first.dtype)


def _tensorflow_step(subject, mode, backward):
    import tensorflow as tf

    arguments = tf.nest.map_structure(tf.constant, (_upstream(subject.arguments[0]), *subject.arguments))

    def forward(upstream, *arguments):
        return subject.function(*arguments)[0]

    def forward_and_backward(upstream, *arguments):
        differentiated = arguments[: subject.num_differentiated]
        with tf.GradientTape() as tape:
            tape.watch(differentiated)
            output, loss = map(tf.convert_to_tensor, subject.function(*arguments))
        variables = [variable.value for variable in subject.variables]
        gradients = tape.gradient([output, loss], [*differentiated, *variables], [upstream, tf.ones_like(loss)])
        return output, gradients

    compiled = tf.function(forward_and_backward if backward else forward, jit_compile=mode == "xla", autograph=False)

    def prepare():
        compiled.get_concrete_function(*arguments)
        if mode == "xla":
            compiled.experimental_get_compiler_ir(*arguments)("optimized_hlo")

    def run():
        results = compiled(*arguments)
        for result in tf.nest.flatten(results):
            result.numpy()  # waits for the result; no copy on a CPU
        return results

    return Step(prepare, run)


def jax_program(subject, backward):
    """Return a lowered JAX program of a subject and its arguments, arrays; for `backward`, see `step_of`."""
    import jax
    import jax.numpy as jnp

    arguments = jax.tree.map(jnp.asarray, (_upstream(subject.arguments[0]), *subject.arguments))

    def forward(upstream, *arguments):
        return subject.function(*arguments)[0]

    def forward_and_backward(upstream, *arguments):
        def differentiated(*first):
            output, loss = subject.function(*first, *arguments[len(first) :])
            return output, jnp.asarray(loss)

        (output, loss), pull = jax.vjp(differentiated, *arguments[: subject.num_differentiated])
        return output, pull((upstream, jnp.ones_like(loss)))

    return jax.jit(forward_and_backward if backward else forward).lower(*arguments), arguments


def _jax_step(subject, backward):
    import jax

    lowered, arguments = jax_program(subject, backward)
    ready = []

    def prepare():
        if not ready:
            ready.append(lowered.compile())

    def run():
        prepare()
        return jax.block_until_ready(ready[0](*arguments))

    return Step(prepare, run)


def torch_step(heads, backward):
    """Return the `Step` of PyTorch's dense causal `scaled_dot_product_attention`, or None without PyTorch.

    Args:
        heads: NumPy arrays of queries, keys and values, (B, N, T, H).
        backward: whether to also compute gradients.
    """
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    tensors = [torch.from_numpy(x).requires_grad_(backward) for x in heads]
    upstream = torch.from_numpy(_upstream(heads[0]))

    def run():
        with torch.set_grad_enabled(backward):
            output = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
            return output, torch.autograd.grad(output, tensors, upstream) if backward else ()

    return Step(lambda: None, run)
