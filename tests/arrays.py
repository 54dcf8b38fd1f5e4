"""Reads every array that a traced program forms, and says whether one of them is quadratic in the sequence."""

import math
from itertools import permutations


def shapes_of_graph(graph):
    """Return the shapes of all tensors of a TensorFlow graph and of the functions it calls."""
    shapes = []
    for operation in graph.get_operations():
        if operation.type == "BroadcastGradientArgs":  # lists of a few axes, of unknown length
            continue
        shapes += [(operation.type, tuple(output.shape)) for output in operation.outputs]
        for name in ("f", "body", "cond", "then_branch", "else_branch"):
            if name in operation.node_def.attr and operation.get_attr(name):
                inner = graph._get_function(operation.get_attr(name).name)
                shapes += shapes_of_graph(inner.graph)
    return shapes


def shapes_of_jaxpr(jaxpr):
    """Return the shapes of all values of a jaxpr and of those inside it."""
    shapes = []
    for equation in jaxpr.eqns:
        shapes += [(equation.primitive.name, tuple(value.aval.shape)) for value in equation.outvars]
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, list | tuple) else [parameter]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    shapes += shapes_of_jaxpr(inner)
    return shapes


def quadratic(shapes, num_queries, num_keys, largest):
    """Return the arrays that have an axis of both lengths, or more than `largest` elements.

    Args:
        shapes: list of (operation, shape); every size must be known.
        num_queries: T.
        num_keys: S, which may be T: then two axes of that length.
        largest: elements an array may have.
    """
    found = []
    for name, shape in shapes:
        assert None not in shape, f"unknown size in {name} {shape}"
        both = (num_queries, num_keys) in permutations(shape, 2)  # of two different axes
        if both or math.prod(shape) > largest:
            found.append((name, shape))
    return found
