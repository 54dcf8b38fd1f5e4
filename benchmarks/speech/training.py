"""Training of a recognizer for a number of minutes of processor time, with the trainer."""

import json
import math
import pathlib
import threading
import time
from typing import Any

import keras
import ml_collections

from tf_sparse_attention.atomic_files import write_json
from tf_sparse_attention.trainers.configs import speech
from tf_sparse_attention.trainers.shared import components, devices, training
from tf_sparse_attention.trainers.tasks import registry

CHECKPOINT_EVERY = 20  # steps


def config_of(kind: str, seed: int, num_steps: int, path: pathlib.Path, folder: pathlib.Path) -> Any:
    """Return the configuration of a run; `folder` stores the features for all runs."""
    config = speech.get_config(kind)
    config.seed = seed
    config.data.update(path=str(path), data_dir=str(folder / "data"))
    # No evaluation during training: all time is spent on steps.
    config.train.update(num_steps=num_steps, evaluate_every=0, checkpoint_every=CHECKPOINT_EVERY)
    return config


def pace(kind: str, num_steps: int, path: pathlib.Path, folder: pathlib.Path) -> dict[str, float]:
    """Return "seconds_per_step", the mean processor seconds of the first training steps, whose model is discarded.

    Programs, one per length, are compiled before they are timed.
    """
    config = config_of(kind, 0, num_steps, path, folder)
    devices.make_deterministic(config.train.jit_compile)  # as in the trainer
    task = registry.make_task(config)
    batches = task.training_batches()
    keras.utils.set_random_seed(config.seed)
    model = task.make_model()
    optimizer = components.make_optimizer(config, model.backbone.hidden_dim)
    model.compile(optimizer, **task.compile_arguments(), jit_compile=config.train.jit_compile)
    seconds, known = 0.0, set()
    for inputs, labels, weights in batches.dataset(stop=num_steps):
        shapes = tuple(inputs["features"].shape), tuple(labels.shape)
        if shapes not in known:
            model.train_on_batch(inputs, labels, sample_weight=weights)
            known.add(shapes)
        started = time.process_time()
        model.train_on_batch(inputs, labels, sample_weight=weights)
        seconds += time.process_time() - started
    return {"seconds_per_step": seconds / num_steps, "paced_steps": num_steps}


def train(config: ml_collections.ConfigDict, folder: pathlib.Path) -> dict[str, Any]:
    """Train a model to its last step; resume from the newest checkpoint after a kill.

    Returns:
        Dictionary: "steps", "weights" (number of trainable weights), and "processor_seconds" of all starts, including
        compilation.

    Raises:
        SystemExit: If a signal ended the training, with the exit status of the trainer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessorClock(folder / "processor_seconds.json") as clock:
        outcome = training.train(config, folder)
    if outcome.signal is not None:
        raise SystemExit(128 + outcome.signal)
    weights = sum(math.prod(weight.shape) for weight in outcome.model.trainable_weights)
    result = {"steps": outcome.step, "weights": weights, "processor_seconds": clock.seconds()}
    keras.utils.clear_session()
    return result


class ProcessorClock:
    """Context manager that adds its processor seconds to a file, also if the process is killed.

    Args:
        path: the file, which has a JSON number.
        every: seconds between writes. Default: 5.
    """

    def __init__(self, path: pathlib.Path, every: float = 5.0) -> None:
        self._path, self._every = path, every
        self._before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def seconds(self) -> float:
        """Return the processor seconds of all starts so far."""
        return json.loads(self._path.read_text(encoding="utf-8"))

    def __enter__(self):
        self._started = time.process_time()
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._thread.join()

    def _keep(self):
        over = False
        while not over:
            over = self._ended.wait(self._every)
            write_json(self._path, self._before + time.process_time() - self._started)
