"""The scores of a classifier, every text once: accuracy, macro F1 and the loss."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.trainers.shared import scoring, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import EvaluationRun
from tf_sparse_attention.trainers.shared.resumable_sums import Progress
from tf_sparse_attention.trainers.tasks.parts import Shown

NUM_SHOWN, SHOWN_CHARACTERS = 4, 400  # texts of TensorBoard, and of each


class ClassScorer(scoring.Scorer):
    """The weight of each row, its nats, the true class and the predicted one.

    Args:
        model: a `SequenceClassifier`.
    """

    columns = ("weights", "nats", "classes", "predictions")

    def call(self, inputs: dict[str, Any]) -> Any:
        inputs = dict(inputs)
        classes, weights = inputs.pop("targets"), inputs.pop("weights")
        logits = self.model(inputs, training=False)
        nats = keras.losses.sparse_categorical_crossentropy(classes, logits, from_logits=True)
        columns = weights, nats, classes, ops.argmax(logits, axis=-1)
        return ops.stack([ops.cast(column, "float32") for column in columns], axis=-1)

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        """Returns "nats" of all texts, and "confusion", int (C, C), their numbers by true and predicted class."""
        texts = rows[rows[:, 0] > 0]  # without rows that fill a batch
        confusion = np.zeros([self.model.num_classes] * 2, int)
        np.add.at(confusion, tuple(texts[:, 2:].astype(int).T), 1)
        return {"nats": texts[:, 1].sum(), "confusion": confusion}


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
        self._scorer = ClassScorer(model)
        self._scorer.compile(**execution)

    def score(self, devices: Any, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, float]:
        """Returns the loss in nats a text, accuracy and macro F1, from 0 to 1."""
        sums = self.sums(devices, callbacks)
        return figures(sums["nats"], np.array(sums["confusion"]))

    def sums(self, devices: Any, callbacks: Sequence[Any] = (), **options: Any) -> dict[str, Any]:
        """Returns the totals of all texts, see `ClassScorer`; `options` as for `scoring.sum_batches`."""
        batches = self.buckets.evaluation_batches()
        return scoring.sum_batches(self._scorer, devices, batches, callbacks=callbacks, **options)

    def show(self) -> Shown:
        """Returns some texts with the class that the model says they have and the one they have."""
        numbers, store, tokenizer = self.buckets.chosen[:NUM_SHOWN], self.buckets.store, self.task.tokenizer
        ids = [store.document(number) for number in numbers]
        texts = {}
        for place, (document, probabilities) in enumerate(
            zip(ids, self.task.probabilities(self.model, ids), strict=True)
        ):
            true = self.task.labels[self.buckets.classes[numbers[place]]]
            predicted = self.task.labels[int(np.argmax(probabilities))]
            head = f"predicted {predicted} ({probabilities.max():.2f}), true {true}"
            texts[f"example_{place}"] = f"{head}\n\n{tokenizer.detokenize(document[:-1])[:SHOWN_CHARACTERS]}"
        return Shown({}, texts, {})


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
    buckets = task.open_buckets(split)
    run = EvaluationRun(folder, split, task.config, task.source)
    with run.devices.scope():
        model: Any = workdir.load_model(folder)
        model.shrink_windows()
        validation = Validation(task, model, buckets, run.execution)
        sums = validation.sums(run.devices, partial=run.resumable_sums(), progress=Progress)
    confusion = np.array(sums["confusion"])
    result = {
        "split": split,
        "data": task.source.name,
        "texts": int(confusion.sum()),
        "cut": buckets.num_cut,
        **figures(sums["nats"], confusion),
        "labels": list(task.labels),
        "confusion": sums["confusion"],
        "seconds": sums["seconds"],
        "backend": keras.backend.backend(),
    }
    return run.write(result)


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
