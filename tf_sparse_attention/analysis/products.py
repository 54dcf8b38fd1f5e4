"""Matrix products of a computation, counted in its traced program without running it."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from tf_sparse_attention.layers.parts.cache_tensors import bytes_of

PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "Einsum")  # TensorFlow operations
IN_LOOP = (
    "The computation must not multiply matrices in loops (recurrent layers) or branches. Received: such a product."
)


class Product(NamedTuple):
    """Cost of one matrix product or batched matrix product.

    Attributes:
        num_operations: multiplications and additions, 2 m n k per matrix.
        num_bytes: bytes of the factors and the result.
    """

    num_operations: int
    num_bytes: int


def products(function: Callable[..., Any], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> list[Product]:
    """Return the matrix products of a function.

    Args:
        function: function of tensors, which is traced, not run.
        shapes: shapes of the arguments.
        dtypes: dtypes of the arguments.

    Raises:
        ValueError: If the backend is not TensorFlow or JAX, or if a product is in a loop or branch.
    """
    backend = keras.backend.backend()
    if backend not in COUNTS:
        raise ValueError(f"The backend must be tensorflow or jax to count products. Received: {backend}.")
    # Import by name: Keras has already loaded the backend, and unused backends must not be imported.
    return list(COUNTS[backend](importlib.import_module(backend), function, shapes, dtypes))


def _of_tensorflow(tf, function, shapes, dtypes):
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    for inner in graph.as_graph_def().library.function:
        if any(node.op in PRODUCTS for node in inner.node_def):
            raise ValueError(IN_LOOP)
    for operation in graph.get_operations():
        if operation.type in PRODUCTS and len(operation.inputs) == 2:
            first, second = operation.inputs
            yield _product(first, second, operation.outputs[0], _size_summed(operation))


def _size_summed(operation):
    """Return k of a TensorFlow matrix product, the size of the contracted axes."""
    first, second = (tuple(x.shape) for x in operation.inputs)
    if operation.type != "Einsum":
        transposed = [name for name in ("transpose_a", "adj_x") if name in operation.node_def.attr]
        return first[-2 if operation.get_attr(transposed[0]) else -1]
    factors, result = operation.get_attr("equation").decode().split("->")
    sizes: dict[str, int] = {}
    for letters, shape in zip(factors.split(","), (first, second), strict=True):
        sizes |= dict(zip(letters[::-1], shape[::-1], strict=False))  # an ellipsis comes first
    return int(np.prod([sizes[letter] for letter in sizes if letter not in result and letter != "."]))


def _of_jax(jax, function, shapes, dtypes):
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    yield from _of_jaxpr(jax.make_jaxpr(function)(*specs).jaxpr)


def _of_jaxpr(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            first, second = (each.aval for each in equation.invars)
            size = int(np.prod([first.shape[axis] for axis in summed]))
            yield _product(first, second, equation.outvars[0].aval, size)
        found = [product for inner in _parts_of(equation) for product in _of_jaxpr(inner)]
        if found and equation.primitive.name in ("scan", "while", "cond"):
            raise ValueError(IN_LOOP)
        yield from found


def _parts_of(equation):
    """Return the inner jaxprs of a JAX operation."""
    values = [each for value in equation.params.values() for each in (value if isinstance(value, tuple) else (value,))]
    programs = [getattr(value, "jaxpr", value) for value in values]
    return [program for program in programs if hasattr(program, "eqns")]


def _product(first, second, result, size_summed):
    counts = [int(np.prod(x.shape)) for x in (first, second, result)]
    sizes = [bytes_of(x.dtype) for x in (first, second, result)]
    return Product(2 * counts[-1] * size_summed, sum(count * size for count, size in zip(counts, sizes, strict=True)))


COUNTS = {"tensorflow": _of_tensorflow, "jax": _of_jax}
