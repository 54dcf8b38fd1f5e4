"""Gradients on TensorFlow, JAX and torch, which `keras.ops` does not have."""

import contextlib
import importlib
from collections.abc import Callable, Iterator

import keras

from tf_sparse_attention.types import Tensor


def vector_jacobian_product(
    function: Callable[[list[Tensor]], list[Tensor]], sources: list[Tensor]
) -> tuple[list[Tensor], Callable[[list[Tensor]], list[Tensor]]]:
    """Run `function` once, ready for any number of backward passes.

    A backward pass computes `sum_k cotangent_k * d output_k / d source`, for all sources at once.

    Args:
        function: takes the list of sources, returns a list of floating-point tensors.
        sources: list of floating-point tensors.

    Returns:
        `(outputs, pull_back)`. `pull_back` takes one cotangent for each output, of its shape and dtype, and returns
        one gradient for each source; it is zero where no output depends on the source.

    Raises:
        ValueError: If the Keras backend is none of TensorFlow, JAX and torch.
    """
    backend = keras.backend.backend()
    if backend not in _ROUTES:
        raise ValueError(
            "Gradients need TensorFlow, JAX or torch as the backend; `gradients=False` still compares outputs. "
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


def _torch(torch, function, sources):
    sources = [source.detach().requires_grad_(True) for source in sources]
    with torch.enable_grad():
        outputs = function(sources)

    def pull_back(cotangents):
        pairs = [pair for pair in zip(outputs, cotangents, strict=True) if pair[0].requires_grad]
        if not pairs:  # nothing depends on a source, of which torch makes an error
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
    """Context of forward passes alone: torch keeps what a backward pass needs of each, the other backends do not."""
    if keras.backend.backend() != "torch":
        yield
        return
    with importlib.import_module("torch").no_grad():
        yield
