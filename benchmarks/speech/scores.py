"""Error rate of a trained recognizer on the test split, with its own attention or with another kind."""

import pathlib
from typing import Any

import keras

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation

KEPT = ("phone_error_rate", "loss", "labels", "recordings")


def evaluate(folder: pathlib.Path, attention: str | None = None) -> dict[str, Any]:
    """Return the phone error rate of a run's model with greedy decoding, and its nats per label ("loss").

    Args:
        folder: the run directory.
        attention: kind of attention to use instead of the model's. None: the model's attention.

    Raises:
        ValueError: If the folder has no trained model.
    """
    wanted = base.overridable_settings()
    wanted.train.num_beams = 0
    wanted.train.evaluation_attention = attention
    found = evaluation.evaluate(folder, "test", wanted)
    keras.utils.clear_session()
    return {name: found[name] for name in KEPT}
