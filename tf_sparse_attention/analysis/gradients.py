"""Gradients on TensorFlow, JAX and torch, which `keras.ops` does not provide."""

import contextlib
import importlib
from collections.abc import Callable, Iterator

import keras

from tf_sparse_attention.types import Tensor


def vector_jacobian_product(
    function: Callable[[list[Tensor]], list[Tensor]], sources: list[Tensor]
) -> tuple[list[Tensor], Callable[[list[Tensor]], list[Tensor]]]:
    """Run `function` once and return its outputs with a function for any number of backward passes.

    A backward pass computes `sum_k cotangent_k * d output_k / d source` for all sources.

    Args:
        function: function from the list of sources to a list of floating-point tensors.
        sources: list of floating-point tensors.

    Returns:
        `(outputs, pull_back)`. `pull_back` takes one cotangent per output, with the shape and dtype of the output, and
        returns one gradient per source, zero for sources that no output depends on.

    Raises:
        ValueError: If the Keras backend is not TensorFlow, JAX or torch.
    """
    backend = keras.backend.backend()
    if backend not in _ROUTES:
        raise ValueError(
            "Gradients need the TensorFlow, JAX or torch backend; with `gradients=False`, the audit compares outputs. "
            f"Received: backend={backend!r}."
        )
    # Import by name: Keras has already loaded the backend, and unused backends must not be imported.
    return _ROUTES[backend](importlib.import_module(backend), function, sources)


def _tensorflow(tf, function, sources):
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = function(sources)

    def pull_back(cotangents):
        gradients = tape.gradient(outputs, sources, output_gradients=cotangents, unconnected_gradients="zero")
        # The gradient of a gather is an `IndexedSlices`.
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    return outputs, pull_back


def _jax(jax, function, sources):
    outputs, pull_back = jax.vjp(function, sources)
    return outputs, lambda cotangents: pull_back(cotangents)[0]


def _torch(torch, function, sources):
    sources = [source.detach().requires_grad_(True) for source in sources]
    with torch.enable_grad():
        outputs = function(sources)

    def pull_back(cotangents):
        pairs = [pair for pair in zip(outputs, cotangents, strict=True) if pair[0].requires_grad]
        if not pairs:  # no output depends on a source, for which torch raises an error
            return [torch.zeros_like(source) for source in sources]
        differentiable, weights = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(differentiable, sources, weights, retain_graph=True, allow_unused=True)
        return [
            torch.zeros_like(source) if gradient is None else gradient
            for source, gradient in zip(sources, gradients, strict=True)
        ]

    return outputs, pull_back


_ROUTES = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Disable gradients within the context, so that torch does not store activations; no effect on other backends."""
    if keras.backend.backend() != "torch":
        yield
        return
    with importlib.import_module("torch").no_grad():
        yield
