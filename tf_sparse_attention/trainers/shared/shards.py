"""JAX arrays that are split over the devices of several processes."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops


class Shard(NamedTuple):
    """Part of an array.

    Attributes:
        bounds: [start, stop] for each axis.
        value: the part as a NumPy array.
    """

    bounds: list[list[int]]
    value: np.ndarray


def is_split(variable: Any) -> bool:
    """Return whether this process has only a part of a variable."""
    if keras.backend.backend() != "jax":
        return False
    value = ops.convert_to_tensor(variable)
    return not (value.is_fully_addressable or value.is_fully_replicated)


def local_shards(variable: Any) -> list[Shard]:
    """Return the parts of a split variable in this process. Each part is in one process only."""
    value = ops.convert_to_tensor(variable)
    shards = []
    for shard in value.addressable_shards:
        if shard.replica_id == 0:
            bounds = [list(index.indices(size)[:2]) for index, size in zip(shard.index, value.shape, strict=True)]
            shards.append(Shard(bounds, np.asarray(shard.data)))
    return shards


def as_numpy(variable: Any) -> np.ndarray:
    """Return the whole value of a variable. If it is split, all processes must call this function."""
    if not is_split(variable):
        return ops.convert_to_numpy(variable)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(ops.convert_to_tensor(variable), tiled=True))
