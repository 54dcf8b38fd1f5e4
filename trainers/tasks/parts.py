"""What tasks hand to the trainer: data to train on, and what to show."""

from typing import Any, NamedTuple


class TrainingData(NamedTuple):
    """The data of a run.

    Attributes:
        source: has a `name`, for work folders.
        fingerprint: a string that identifies it.
        batches: its `dataset(start_step, num_steps, **shard)` is a `tf.data.Dataset` that can begin at any step.
        tokens_per_step: for the log.
    """

    source: Any
    fingerprint: str
    batches: Any
    tokens_per_step: int


class Shown(NamedTuple):
    """What a task shows of its model after an evaluation, beside its scores.

    Attributes:
        scalars: numbers by name.
        texts: texts by name.
        pictures: uint8 arrays (height, width, 3 or 4) by name.
    """

    scalars: dict[str, float]
    texts: dict[str, str]
    pictures: dict[str, Any]
