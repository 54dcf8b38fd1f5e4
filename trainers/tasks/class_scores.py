"""The scores of a classifier, every text once: accuracy, macro F1 and the loss."""

import functools
import os
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from trainers.shared import scoring, strategy, workdir
from trainers.shared.files import write_json
from trainers.shared.resumable_sums import Progress, ResumableSums
from trainers.tasks.parts import Shown

NUM_SHOWN, SHOWN_CHARACTERS = 4, 400  # texts of TensorBoard, and of each


class Scorer(tsa.models.Model):
    """What `predict` returns of each row: weight, nats, the true class and the predicted one, float32 (B, 4).

    Args:
        model: a `SequenceClassifier`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(name="class_scorer")
        self.model = model
        self.built = True

    def call(self, inputs: dict[str, Any]) -> Any:
        inputs = dict(inputs)
        classes, weights = inputs.pop("classes"), inputs.pop("weights")
        logits = self.model(inputs, training=False)
        nats = keras.losses.sparse_categorical_crossentropy(classes, logits, from_logits=True)
        columns = weights, nats, classes, ops.argmax(logits, axis=-1)
        return ops.stack([ops.cast(column, "float32") for column in columns], axis=-1)


class Validation:
    """Scores texts of the validation split, and shows some.

    Args:
        task: a `trainers.tasks.classify.Task`.
        model: its model.
        buckets: the `LabeledBuckets` of the texts.
        execution: arguments of `keras.Model.compile`.
    """

    def __init__(self, task: Any, model: Any, buckets: Any, execution: dict[str, Any]) -> None:
        self.task, self.model, self.buckets = task, model, buckets
        self._scorer = Scorer(model)
        self._scorer.compile(**execution)

    def score(self, devices: Any, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, float]:
        """Returns the loss in nats a text, accuracy and macro F1, from 0 to 1."""
        sums = self.sums(devices, callbacks)
        return figures(sums["nats"], np.array(sums["confusion"]))

    def sums(
        self, devices: Any, callbacks: Sequence[Any] = (), partial: Any = None, progress: Any = None
    ) -> dict[str, Any]:
        """Returns "nats" of all texts, "confusion", their numbers by true and predicted class, lists, and "seconds".

        Args:
            devices, callbacks, partial, progress: as for `scoring.score`.
        """
        num_batches, num_classes = self.buckets.num_batches, self.model.num_classes
        shown = None if progress is None else progress(num_batches)
        callbacks = [*callbacks, *([] if shown is None else [shown])]
        first, sums = (0, None) if partial is None else partial.load()
        sums = {"nats": 0.0, "confusion": np.zeros([num_classes] * 2, int).tolist(), "seconds": 0.0} | (sums or {})
        while first < num_batches:
            begin, count = time.perf_counter(), min(scoring.BATCHES_PER_SAVE, num_batches - first)
            make = functools.partial(self.buckets.evaluation_batches, first, count)
            batches = devices.distribute(lambda make=make, **shard: make(**shard).map(_as_inputs))
            if shown is not None:
                shown.begin(first)
            rows = np.asarray(self._scorer.predict(batches, steps=count, verbose=0, callbacks=callbacks), np.float64)
            sums = _added(sums, rows[rows[:, 0] > 0], time.perf_counter() - begin)
            first += count
            if partial is not None:
                partial.save(first, sums)
        return sums

    def show(self) -> Shown:
        """Returns some texts with the class that the model says they have and the one they have."""
        numbers, store, tokenizer = self.buckets.chosen[:NUM_SHOWN], self.buckets.store, self.task.tokenizer
        ids = [store.document(number) for number in numbers]
        texts = {}
        for place, (document, probabilities) in enumerate(
            zip(ids, self.task.probabilities(self.model, ids), strict=True)
        ):
            true = self.task.labels[self.buckets.class_of(numbers[place])]
            predicted = self.task.labels[int(np.argmax(probabilities))]
            head = f"predicted {predicted} ({probabilities.max():.2f}), true {true}"
            texts[f"example_{place}"] = f"{head}\n\n{tokenizer.detokenize(document[:-1])[:SHOWN_CHARACTERS]}"
        return Shown({}, texts, {})


def _as_inputs(inputs, classes, weights):
    return ({**inputs, "classes": classes, "weights": weights},)


def _added(sums, rows, seconds):
    """Returns sums with those of more texts, rows (texts, 4)."""
    confusion = np.array(sums["confusion"])
    np.add.at(confusion, tuple(rows[:, 2:].astype(int).T), 1)
    return {
        "nats": sums["nats"] + float(rows[:, 1].sum()),
        "confusion": confusion.tolist(),
        "seconds": sums["seconds"] + seconds,
    }


def figures(nats: float, confusion: np.ndarray) -> dict[str, float]:
    """Returns "loss", nats a text, "accuracy", and "macro_f1", the mean over the classes of 2 TP / (2 TP + FP + FN).

    A class that no text has or gets counts 0, as in `keras.metrics.F1Score(average="macro")`.

    Args:
        nats: of all texts.
        confusion: int (C, C), texts by true and predicted class.
    """
    right, count = np.diag(confusion), max(int(confusion.sum()), 1)
    f1 = 2 * right / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    return {"loss": nats / count, "accuracy": float(right.sum() / count), "macro_f1": float(f1.mean())}


def evaluate(task: Any, folder: str | os.PathLike, split: str) -> dict[str, Any]:
    """Returns the scores of the model in a work folder, see `Task.evaluate`, and writes them there."""
    config, source = task.config, task.source
    buckets = task.open_buckets(split)
    path = workdir.evaluation_path(folder, split, source)
    sizes = [buckets.batch_size, buckets.max_length]
    identity = [source.fingerprint, split, workdir.model_version(folder), *sizes]
    partial = ResumableSums(path.with_suffix(".partial.json"), identity)
    devices = strategy.choose_devices(config)
    with devices.scope():
        execution = devices.execution(config.train.jit_compile, config.train.steps_per_execution)
        model: Any = workdir.load_model(folder)
        model.shrink_windows()
        validation = Validation(task, model, buckets, execution)
        sums = validation.sums(devices, (), partial if devices.is_single_process else None, Progress)
    confusion = np.array(sums["confusion"])
    result = {
        "split": split,
        "data": source.name,
        "texts": int(confusion.sum()),
        "cut": buckets.num_cut,
        **figures(sums["nats"], confusion),
        "labels": list(task.labels),
        "confusion": sums["confusion"],
        "seconds": sums["seconds"],
        "backend": keras.backend.backend(),
        "path": str(path),
    }
    if devices.is_chief:
        write_json(path, result)
        partial.remove()
    return result


def as_text(scores: dict[str, Any]) -> str:
    """Returns the scores as text, a line each."""
    rows = [
        ("texts", f"{scores['data']}, {scores['split']}: {scores['texts']}, {scores['cut']} of them cut"),
        ("accuracy", f"{scores['accuracy']:.4f} of {len(scores['labels'])} classes"),
        ("macro F1", f"{scores['macro_f1']:.4f}"),
        ("loss", f"{scores['loss']:.4f} nats a text"),
        ("seconds", f"{scores['seconds']:.1f}"),
    ]
    return "\n".join(f"{name:<22}{value}" for name, value in rows)
