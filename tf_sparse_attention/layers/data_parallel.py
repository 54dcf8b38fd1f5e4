"""State that several TensorFlow replicas share, means over the targets of all of them, and per-replica random seeds.

A cross-replica reduction inside a layer's `call` corrupts the losses that layers add, and cannot run under remat. So a
layer leaves its replica's sums in a variable, and the training step of `tsa.models.Model`, after the gradients, adds
them over all replicas with one reduction and lets every layer advance.

Imports TensorFlow, as no other layer does, and only inside its functions.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tf_sparse_attention.replicas import in_several_replicas, replica_count
from tf_sparse_attention.types import Tensor

_LOCAL = threading.local()  # each replica runs in a thread of its own


@contextlib.contextmanager
def deferred_updates() -> Iterator[None]:
    """Declare that whoever calls the layers inside will call `apply_deferred` after them."""
    before = is_deferring()
    _LOCAL.deferring = True
    try:
        yield
    finally:
        _LOCAL.deferring = before


def is_deferring() -> bool:
    """Return whether a training step has promised to call `apply_deferred`."""
    return getattr(_LOCAL, "deferring", False)


def check_deferring(layer: keras.layers.Layer) -> None:
    """Raise unless a training step has promised to add the sums of `layer` over the replicas."""
    if not is_deferring():
        raise RuntimeError(
            f"`{layer.name}` ({type(layer).__name__}) keeps centroids that several replicas have to update together, "
            "which a plain `keras.Model` does not do. Subclass `tf_sparse_attention.models.Model` in place of "
            "`keras.Model` (for a functional model: `models.Model(inputs, outputs)`), or train on one device. "
            f"Received: {replica_count()} replicas."
        )


def apply_deferred(layers: Iterable[keras.layers.Layer]) -> None:
    """Add the pending sums of all `layers` over the replicas, in one reduction, and lets each layer advance.

    Args:
        layers: layers with `pending`, a list of variables, and `advance(sums)`. In replica context.
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
    """Declare that a loss is a mean over `rows` rows of this replica, and makes it one over those of all replicas.

    Keras takes the mean of the losses of replicas, of which one may have fewer rows than another, or fewer targets in
    as many: a training step weighs its loss by `weight_by_rows`, and a loss multiplies its own by `mean_factor`. Both
    numbers are added up here, before the layers are called.

    Args:
        rows: int (), in replica context.
        count: float32 (), targets of this replica, which the loss is the mean of. None: it is one over rows.
    """
    before = _row_weight(), mean_factor()
    if in_several_replicas():
        _LOCAL.row_weight, _LOCAL.mean_factor = _weights(rows, count)
    try:
        yield
    finally:
        _LOCAL.row_weight, _LOCAL.mean_factor = before


def mean_factor() -> Any:
    """Return what a mean over the targets of this replica, or over one if there are none, is multiplied by."""
    return getattr(_LOCAL, "mean_factor", 1.0)


def weight_by_rows(loss: Tensor) -> Tensor:
    """Return the loss of this replica, a scalar, with the gradient that is its part of the mean over all rows.

    What Keras reports it weighs by the rows of replicas; the gradients it adds up as if each had as many.
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


def _weights(rows, count):
    """Return what the loss of this replica weighs, 1 where all have as many rows, and its `mean_factor`."""
    import tensorflow as tf

    rows = tf.cast(rows, "float32")
    own = tf.stack([rows, tf.zeros(()) if count is None else count])
    all_rows, all_targets = tf.unstack(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own))
    weight = rows * replica_count() / tf.maximum(all_rows, 1.0)
    if count is None:
        return weight, 1.0
    return weight, tf.maximum(count, 1.0) * all_rows / tf.maximum(all_targets, 1.0) / tf.maximum(rows, 1.0)


def has_several_workers() -> bool:
    """Return whether the current strategy is one of several processes, `tf.distribute.MultiWorkerMirroredStrategy`."""
    if replica_count() == 1:
        return False
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    many = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return many and bool(strategy.cluster_resolver.cluster_spec().jobs)


def logs_to_average(logs: Any) -> Any:
    """Return what a training step reports in the shape in which Keras averages it over workers: of rank 1."""
    if not has_several_workers():
        return logs
    return keras.tree.map_structure(lambda value: keras.ops.reshape(value, (1,)), logs)


def local_batch(strategy: Any, step_and_batches: tuple[int, int, Iterator[Any]]) -> Any:
    """Return the next batch of the first replica of this worker.

    Args:
        strategy: the `tf.distribute.Strategy` of the model.
        step_and_batches: what a Keras epoch iterator yields: first step, last step, iterator.
    """
    first = strategy.experimental_local_results
    return keras.tree.map_structure(lambda value: first(value)[0], next(step_and_batches[2]))


class SeedGenerator(keras.random.SeedGenerator):
    """A seed generator whose draws differ between replicas, where Keras's own gives all of them the same."""

    def next(self, ordered: bool = True) -> Tensor:
        seed = super().next(ordered)
        if not in_several_replicas():
            return seed
        import tensorflow as tf

        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        offset = tf.stack([tf.zeros((), "uint32"), tf.cast(replica, "uint32") * 0x9E3779B1])
        return seed + tf.cast(offset, seed.dtype)
