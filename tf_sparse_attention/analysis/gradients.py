"""Gradients on TensorFlow and JAX, which `keras.ops` does not have."""

import importlib
from collections.abc import Callable

import keras

from tf_sparse_attention.types import Tensor


def vector_jacobian_product(
    function: Callable[[list[Tensor]], list[Tensor]], sources: list[Tensor]
) -> tuple[list[Tensor], Callable[[list[Tensor]], list[Tensor]]]:
    """Runs `function` once, ready for any number of backward passes.

    A backward pass computes `sum_k cotangent_k * d output_k / d source`, for all sources at once.

    Args:
        function: takes the list of sources, returns a list of floating-point tensors.
        sources: list of floating-point tensors.

    Returns:
        `(outputs, pull_back)`. `pull_back` takes one cotangent for each output, of its shape and dtype, and returns
        one gradient for each source; it is zero where no output depends on the source.

    Raises:
        ValueError: If the Keras backend is neither TensorFlow nor JAX.
    """
    backend = keras.backend.backend()
    if backend not in _ROUTES:
        raise ValueError(
            "Gradients need the TensorFlow or the JAX backend; without them `gradients=False` still compares outputs. "
            f"Received: backend={backend!r}."
        )
    # By name: the backend is already loaded by Keras, and this file must not import the ones that are not in use.
    return _ROUTES[backend](importlib.import_module(backend), function, sources)


def _tensorflow(tf, function, sources):
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = function(sources)

    def pull_back(cotangents):
        gradients = tape.gradient(outputs, sources, output_gradients=cotangents, unconnected_gradients="zero")
        # The gradient of a gather comes as sparse slices.
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    return outputs, pull_back


def _jax(jax, function, sources):
    outputs, pull_back = jax.vjp(function, sources)
    return outputs, lambda cotangents: pull_back(cotangents)[0]


_ROUTES = {"tensorflow": _tensorflow, "jax": _jax}
