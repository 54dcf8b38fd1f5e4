"""Processor seconds of forward passes by length, for the recognizers of `trainers/configs/speech.py`."""

import functools
import statistics
import time
from typing import Any

import keras
import numpy as np

from benchmarks import steps
from benchmarks.subjects import Subject
from tf_sparse_attention.trainers.configs import speech
from tf_sparse_attention.trainers.tasks.speech import Task

MODE = {"tensorflow": "graph", "jax": "jit"}  # as in the trainer
SOUND: dict[str, Any] = {"mean": [0.0] * 40, "std": [1.0] * 40, "labels": [str(label) for label in range(59)]}


@functools.cache
def model_of(kind: str) -> Any:
    """Return an untrained recognizer with attention of a kind; the time of a pass does not depend on weights."""
    keras.utils.set_random_seed(0)
    return Task(speech.get_config(kind), SOUND).make_model()


def compare(kind: str, length: int, repeats: int) -> dict[str, float | int]:
    """Return the processor seconds of alternating forward passes, with a kind of attention and with "full".

    Args:
        kind: a kind of attention.
        length: number of frames of the recording, which has random features.
        repeats: number of passes per kind.

    Returns:
        Dictionary: medians "seconds" and "full_seconds", "ratio", the median ratio of two consecutive passes, and
        "repeats".
    """
    features = np.random.default_rng(length).standard_normal((1, length, 40), dtype="float32")
    passes = [_pass_of(name, features) for name in (kind, "full")]
    taken = np.array([[_seconds(run) for run in passes] for _ in range(repeats)])
    own, full = np.median(taken, axis=0)
    ratio = statistics.median(taken[:, 0] / taken[:, 1])
    return {"seconds": float(own), "full_seconds": float(full), "ratio": float(ratio), "repeats": repeats}


def _pass_of(kind, features):
    model = model_of(kind)
    subject = Subject(lambda features: (model(features, training=False), 0.0), (features,), 0)
    step = steps.step_of(subject, MODE[keras.backend.backend()], backward=False)
    for _ in range(2):  # the first call compiles, the second allocates memory
        step.run()
    return step.run


def _seconds(run):
    started = time.process_time()
    run()
    return time.process_time() - started
