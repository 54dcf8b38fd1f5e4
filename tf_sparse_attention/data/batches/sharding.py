"""Divides the rows of a batch among input pipelines and replicas."""

from collections.abc import Callable
from typing import Any

from tf_sparse_attention.checks import check_count


def shard_rows(batch_size: int, num_shards: int = 1, shard_index: int = 0, num_parts: int = 1) -> tuple[int, int]:
    """Returns the first row of a shard and the number of rows of one element.

    The batch of a step does not depend on the division: shard i of n has its i-th run of B / n rows, delivered in
    `num_parts` elements of B / n / num_parts consecutive rows.

    Args:
        batch_size: rows B of the whole batch.
        num_shards: input pipelines, normally one a host.
        shard_index: which of them this is.
        num_parts: elements in which a pipeline delivers its rows: 1, or one a replica for
            `tf.distribute.Strategy.distribute_datasets_from_function`.

    Returns:
        `(first_row, rows)`: the first row of this shard, and the rows of one element.

    Raises:
        ValueError: If an argument is out of range or `batch_size` cannot be divided.
    """
    for name, value in {"batch_size": batch_size, "num_shards": num_shards, "num_parts": num_parts}.items():
        check_count(name, value)
    if not 0 <= shard_index < num_shards:
        raise ValueError(
            f"`shard_index` must be in [0, num_shards). Received: shard_index={shard_index}, num_shards={num_shards}."
        )
    if batch_size % (num_shards * num_parts):
        raise ValueError(
            "`batch_size` must be divisible by `num_shards` times `num_parts`. "
            f"Received: batch_size={batch_size}, num_shards={num_shards}, num_parts={num_parts}."
        )
    return shard_index * (batch_size // num_shards), batch_size // (num_shards * num_parts)


def distribute_batches(strategy: Any, make_dataset: Callable) -> Any:
    """Makes a distributed data set in which replicas share the batches that a single device would get.

    Args:
        strategy: `tf.distribute.Strategy`.
        make_dataset: function of `num_shards`, `shard_index` and `num_parts` that returns a `tf.data.Dataset`, such as
            `functools.partial(batches.dataset, start_step=step)` or a partial `evaluation_batches`.

    Returns:
        `tf.distribute.DistributedDataset`, which `keras.Model.fit` takes.
    """

    def pipeline(context):
        return make_dataset(
            num_shards=context.num_input_pipelines,
            shard_index=context.input_pipeline_id,
            num_parts=context.num_replicas_in_sync // context.num_input_pipelines,
        )

    return strategy.distribute_datasets_from_function(pipeline)
