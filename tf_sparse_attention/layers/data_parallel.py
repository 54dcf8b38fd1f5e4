"""Data parallelism on TensorFlow: state shared by replicas, means over all replicas, and per-replica random seeds.

A cross-replica reduction in a layer's `call` corrupts the losses that layers add, and cannot run under remat. So each
layer stores the sums of its replica in variables. After the gradients, the training step of `tsa.models.Model` adds
the sums of all layers over the replicas in one reduction, and calls `advance` of each layer.

This is the only module of `layers` that imports TensorFlow, and only inside functions.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tf_sparse_attention.backends import in_several_replicas, replica_count
from tf_sparse_attention.types import Tensor

_LOCAL = threading.local()  # each replica runs in its own thread


@contextlib.contextmanager
def deferred_updates() -> Iterator[None]:
    """Defer updates of shared state until the caller calls `apply_deferred`."""
    before = is_deferring()
    _LOCAL.deferring = True
    try:
        yield
    finally:
        _LOCAL.deferring = before


def is_deferring() -> bool:
    """Return whether updates of shared state are deferred."""
    return getattr(_LOCAL, "deferring", False)


def check_deferring(layer: keras.layers.Layer) -> None:
    """Raise a `RuntimeError` unless updates of shared state are deferred."""
    if not is_deferring():
        raise RuntimeError(
            f"`{layer.name}` ({type(layer).__name__}) has centroids that must be updated on all replicas together. A "
            "plain `keras.Model` does not do this: subclass `tf_sparse_attention.models.Model` instead (for a "
            "functional model: `models.Model(inputs, outputs)`), or train on one device. "
            f"Received: {replica_count()} replicas."
        )


def apply_deferred(layers: Iterable[keras.layers.Layer]) -> None:
    """Add pending sums over the replicas in one reduction, and call `advance` of each layer, in replica context.

    Args:
        layers: Keras layers. A layer with `pending`, a list of variables, must have a method `advance(sums)`.
    """
    layers = [layer for layer in layers if getattr(layer, "pending", None)]
    if not layers or not in_several_replicas():
        return
    import tensorflow as tf

    values = [[tf.identity(variable.value) for variable in layer.pending] for layer in layers]
    reduced = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
    for layer, sums in zip(layers, reduced, strict=True):
        layer.advance(sums)


@contextlib.contextmanager
def global_mean(rows: Tensor, count: Tensor | None = None) -> Iterator[None]:
    """Correct mean losses for different numbers of rows or targets per replica.

    Keras averages the losses of replicas with equal weights. To get the mean over all rows or targets, a training step
    calls `weight_by_rows`, and a loss multiplies its mean by `mean_factor`. This context computes both factors before
    the layers are called.

    Args:
        rows: int (), number of rows of this replica, in replica context.
        count: float32 (), number of targets of this replica if the loss is a mean over targets. None: the loss is a
            mean over rows.
    """
    before = _row_weight(), mean_factor()
    if in_several_replicas():
        _LOCAL.row_weight, _LOCAL.mean_factor = _replica_factors(rows, count)
    try:
        yield
    finally:
        _LOCAL.row_weight, _LOCAL.mean_factor = before


def mean_factor() -> Any:
    """Return the factor for a mean over the targets of this replica, see `global_mean`."""
    return getattr(_LOCAL, "mean_factor", 1.0)


def weight_by_rows(loss: Tensor) -> Tensor:
    """Weight the gradient of the scalar loss of this replica by its number of rows, without changing the value.

    Keras weights reported losses by rows, but adds gradients as if all replicas had the same number of rows.
    """
    weight = _row_weight()
    if weight is None:
        return loss
    ops = keras.ops
    loss = ops.where(weight > 0, loss, 0)  # a mean over no rows may be NaN
    weight = ops.cast(weight, loss.dtype)
    return weight * loss + ops.stop_gradient((1 - weight) * loss)


def _row_weight():
    return getattr(_LOCAL, "row_weight", None)


def _replica_factors(rows, count):
    """Return the row weight of this replica, 1 for equal numbers of rows, and its `mean_factor`."""
    import tensorflow as tf

    rows = tf.cast(rows, "float32")
    counts = tf.stack([rows, tf.zeros(()) if count is None else count])
    context = tf.distribute.get_replica_context()
    all_rows, all_targets = tf.unstack(context.all_reduce(tf.distribute.ReduceOp.SUM, counts))
    weight = rows * replica_count() / tf.maximum(all_rows, 1.0)
    if count is None:
        return weight, 1.0
    return weight, tf.maximum(count, 1.0) * all_rows / tf.maximum(all_targets, 1.0) / tf.maximum(rows, 1.0)


def logs_to_average(logs: Any) -> Any:
    """Reshape the logs of a training step to rank 1 if there are several workers, so that Keras averages them."""
    if replica_count() == 1:
        return logs
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    if not is_multi_worker or not strategy.cluster_resolver.cluster_spec().jobs:
        return logs
    return keras.tree.map_structure(lambda value: keras.ops.reshape(value, (1,)), logs)


def local_batch(strategy: Any, step_and_batches: tuple[int, int, Iterator[Any]]) -> Any:
    """Return the next batch of the first replica of this worker.

    Args:
        strategy: the `tf.distribute.Strategy` of the model.
        step_and_batches: an item of a Keras epoch iterator: first step, last step, iterator of batches.
    """
    batch = next(step_and_batches[2])
    return keras.tree.map_structure(lambda value: strategy.experimental_local_results(value)[0], batch)


class SeedGenerator(keras.random.SeedGenerator):
    """Seed generator with different seeds per replica, unlike `keras.random.SeedGenerator`."""

    def next(self, ordered: bool = True) -> Tensor:
        seed = super().next(ordered)
        if not in_several_replicas():
            return seed
        import tensorflow as tf

        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        offset = tf.stack([tf.zeros((), "uint32"), tf.cast(replica, "uint32") * 0x9E3779B1])
        return seed + tf.cast(offset, seed.dtype)
