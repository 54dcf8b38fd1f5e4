"""Functions that each device of JAX computes on its own part of a batch, which no compiler could divide by itself."""

import math
from collections.abc import Callable, Sequence

import keras

from tf_sparse_attention.types import Tensor


def over_devices(function: Callable, arrays: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns `function(*arrays)`, by each device on its part where `keras.distribution` divides the batch.

    Args:
        function: function of arrays (b, n, ...) to a tuple of such arrays, rows and heads apart from each other.
        arrays: (B or 1, N, M or 1, ...), the first of them with all rows and heads; M heads belong to N / M each.

    Returns:
        Tuple of arrays (B, N, ...).
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return function(*arrays)
    import jax
    from jax.sharding import PartitionSpec

    mesh = distribution.device_mesh.backend_mesh
    rows = distribution.batch_dim_name
    others = tuple(name for name in mesh.axis_names if name != rows)
    batch = arrays[0].shape[0]
    # What does not come out even is computed by every device as a whole.
    of_rows = rows if batch % mesh.shape[rows] == 0 else None
    parts = math.prod(mesh.shape[name] for name in others)
    # Keys that several heads share are divided with their heads or not at all.
    of_heads = others if all(x.shape[1] % parts == 0 for x in arrays if x.shape[1] != 1) else None
    specs = tuple(
        PartitionSpec(of_rows if x.shape[0] == batch else None, of_heads if x.shape[1] > 1 else None) for x in arrays
    )
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)(*arrays)
