"""A function of those rows alone that need it, in programs whose shapes are fixed."""

import functools
from collections.abc import Callable, Sequence

import keras
from keras import ops

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Tensor

HALVINGS = 7  # from a 64th of the rows, below which a product of matrices is no faster, to all of them


def apply_to_subset(
    function: Callable[[list[Tensor], Sequence[Tensor], list[Tensor]], tuple[Tensor, ...]],
    needed: Tensor,
    rows: Sequence[Tensor],
    weights: Sequence[Tensor] = (),
    numbers: Sequence[Tensor] = (),
    dtypes: Sequence[str] = ("float32",),
) -> tuple[Tensor, ...]:
    """Computes numbers of the rows that need them, zeros for the others.

    The rows that need it are put side by side and filled up with others to the next of a few sizes, each twice the one
    before; each size is a branch of a switch. Cost: at most twice that of the rows that need it, or that of a 64th of
    all; where none needs it, none, and the weights are not touched. The backward pass computes the function again: a
    switch would keep what every one of its branches leaves for it.

    Args:
        function: from lists of c rows, of the weights and of c numbers to a tuple of tensors (c,), each row for itself.
        needed: bool (R,), R at least 1.
        rows: list of float tensors (R, ...).
        weights: list of tensors that the function uses; all that its gradient has to reach must be here.
        numbers: list of integer tensors (R,).
        dtypes: those of the results.

    Returns:
        Tuple of tensors (R,).
    """
    total = shape(needed)[0]
    sizes = [1 + (total - 1) // 2**halving for halving in reversed(range(HALVINGS))]
    sizes = sorted(set(sizes)) if isinstance(total, int) else sizes
    order = ops.argsort(ops.where(needed, 0, 1))
    places = ops.cumsum(ops.cast(needed, "int32")) - 1

    def compute(size, rows, weights):
        chosen = order[:size]
        some_rows, some_numbers = ([ops.take(x, chosen, axis=0) for x in tensors] for tensors in (rows, numbers))
        results = function(some_rows, weights, some_numbers)
        return tuple(ops.where(needed, ops.take(x, ops.minimum(places, size - 1), axis=0), 0) for x in results)

    def nothing(rows, weights):
        return tuple(ops.zeros_like(places, dtype=dtype) for dtype in dtypes)

    branches = [nothing, *(keras.remat(functools.partial(compute, size)) for size in sizes)]
    index = sum(ops.cast(places[-1] + 1 > size, "int32") for size in (0, *sizes[:-1]))
    return ops.switch(index, branches, list(rows), list(weights))
