"""The task of classification: which of the labels of its training a text has, by an encoder of any patterns."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import keras
import ml_collections
import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.data.batches.labeled import pack_texts
from tf_sparse_attention.trainers.shared import components, exporting, sampling, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import with_overrides
from tf_sparse_attention.trainers.tasks import class_scores
from tf_sparse_attention.trainers.tasks.classifier import make_classifier
from tf_sparse_attention.trainers.tasks.parts import Generated, Request, TrainingData
from tf_sparse_attention.trainers.tasks.settings import Names, check_settings
from tf_sparse_attention.trainers.tasks.text_task import TOKENIZER, TextTask

LABELS = "labels.json"
NUM_PRINTED = 10  # labels of a prompt
SHORTEST = 64  # positions of a prompt's row, doubled until it fits


class Task(TextTask):
    """Classification of texts; see `trainers.tasks.registry`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        tokenizer: of the texts. None: the one that `config.data` names.
        labels: those that there are. None: those of the training split, read when they are needed.
    """

    settings: ClassVar[Names] = {
        "data": (*TOKENIZER, "text_feature", "label_feature"),
        "model": ("start_from", "pooling", "causal", "grid"),
        "train": ("evaluation_windows",),
        "generate": ("prompt",),
    }

    def __init__(
        self, config: ml_collections.ConfigDict, tokenizer: Any = None, labels: Sequence[str] | None = None
    ) -> None:
        check_settings(config, {}, {"model": ("causal",)})
        super().__init__(config, tokenizer)
        self._labels = labels

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Returns the task of a work folder."""
        labels = workdir.read_json(folder, LABELS, list)
        return cls(workdir.load_config(folder), workdir.load_tokenizer(folder), labels)

    @classmethod
    def training_texts(cls, config: ml_collections.ConfigDict) -> tuple[str, Iterator[bytes]]:
        """Returns the name of the texts of a configuration, and those of its training split."""
        texts = components.make_labeled_source(config).text
        return texts.name, texts.documents(config.data.train_split)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes tokenizer and labels into a work folder."""
        super().save(folder)
        workdir.save_json(folder, LABELS, self.labels)

    def check(self, folder: str | os.PathLike) -> None:
        """Raises a `ValueError` if a work folder has another tokenizer, or other labels."""
        super().check(folder)
        if (workdir.open_workdir(folder) / LABELS).exists() and workdir.read_json(folder, LABELS, list) != self.labels:
            raise ValueError(
                "`config.data` must have the labels of the checkpoint in the work folder; start a new run with another "
                f"--workdir. Received: {self.labels}."
            )

    @functools.cached_property
    def source(self) -> tsa.data.LabeledSource:
        """The texts and labels that `config.data` names."""
        return components.make_labeled_source(self.config)

    @property
    def labels(self) -> list[str]:
        """The labels that there are, in the order of their classes.

        Raises:
            ValueError: If there is only one.
        """
        if self._labels is None:
            self._labels = self.source.classes(self.config.data.train_split)
        if len(self._labels) < 2:
            raise ValueError(f"`config.data` must have texts of two labels or more. Received: {self._labels}.")
        return list(self._labels)

    def open_buckets(self, split: str, max_texts: int | None = None) -> tsa.data.LabeledBuckets:
        """Returns the texts of a split by length, all or so many, evenly spread."""
        data, source = self.config.data, self.source
        store = tsa.data.open_token_store(source.text, self.tokenizer, split)
        chosen = None
        if max_texts is not None and max_texts < store.num_documents:
            chosen = np.linspace(0, store.num_documents - 1, max_texts).astype("int64")
        sizes = data.batch_size, data.sequence_length
        return tsa.data.LabeledBuckets(store, source.class_ids(split, self.labels), *sizes, chosen)

    def open_data(self) -> TrainingData:
        """Returns the texts of the training split."""
        data, source = self.config.data, self.source
        batches = self.open_buckets(data.train_split).training_batches(self.config.seed)
        return TrainingData(source, source.fingerprint, batches, data.batch_size * data.sequence_length)

    def make_model(self) -> keras.Model:
        """Returns a `SequenceClassifier`, see `classifier.make_classifier`."""
        return make_classifier(self.config, self.tokenizer.vocabulary_size, len(self.labels))

    def make_training_model(self, model: Any) -> keras.Model:
        """Returns the model itself."""
        return model

    def make_loss(self) -> keras.losses.Loss:
        """Returns the nats of a batch divided by its rows, so that each text counts the same in an epoch."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def make_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the mean nats a text, "loss": in Keras's mean, rows that fill a batch count as texts without any."""
        return [keras.metrics.SparseCategoricalCrossentropy("loss", from_logits=True)]

    def make_validation(self, model: Any, execution: dict[str, Any]) -> class_scores.Validation:
        """Returns the `Validation` of a model; `execution` has arguments of `keras.Model.compile`."""
        wanted = self.config.train.evaluation_windows or None
        buckets = self.open_buckets(self.config.data.validation_split, wanted)
        return class_scores.Validation(self, model, buckets, execution)

    def probabilities(self, model: Any, documents: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the probability of each label, float32 (documents, C), of ids with their end id."""
        longest, length = max(map(len, documents)) + 1, SHORTEST
        while length < longest and length < self.config.data.sequence_length:
            length *= 2
        length = min(length, self.config.data.sequence_length)
        logits = model(pack_texts(documents, length), training=False)
        return keras.ops.convert_to_numpy(keras.ops.softmax(logits, axis=-1))

    def evaluate(
        self, folder: str | os.PathLike, split: str, overrides: ml_collections.ConfigDict | None = None
    ) -> dict[str, Any]:
        """Scores every text of a split once, and writes the scores.

        An evaluation that was killed resumes when it is started again.

        Args:
            folder: the work folder.
            split: name of the split, or a part of one in the syntax of TFDS.
            overrides: `overrides.overridable_settings()` with the settings to override. None: none.

        Returns:
            Dictionary: "split", "data", "texts" and those that were "cut", "loss", "accuracy", "macro_f1", "labels",
            "confusion" (texts by true and predicted label), "seconds", "backend", and "path", the file they were
            written to.

        Raises:
            ValueError: If there is no trained model or no such split, or the task ignores a setting of `overrides`.
        """
        config = with_overrides(self.config, overrides)
        return class_scores.evaluate(type(self)(config, self.tokenizer, self.labels), folder, split)

    def as_text(self, scores: dict[str, Any]) -> str:
        """Returns the scores as text, a line each."""
        return class_scores.as_text(scores)

    def generate(
        self,
        folder: str | os.PathLike,
        request: Request,
        show: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> Generated:
        """Returns the labels of a prompt with their probabilities, the most likely first, and writes them."""
        prompt = self.config.generate.prompt.encode() if request.prompt is None else request.prompt
        _check_request(request, prompt)
        path = workdir.open_workdir(folder) / sampling.SAMPLES if request.path is None else request.path
        sampling.check_path(path)
        ids = np.append(self.tokenizer.tokenize(prompt), self.tokenizer.end_id).astype("int32")
        (found,) = self.probabilities(workdir.load_model(folder), [ids])
        order = np.argsort(-found, kind="stable")
        sample = {
            "prompt": prompt.decode("utf-8", errors="replace"),
            "label": self.labels[order[0]],
            "probabilities": {self.labels[place]: float(found[place]) for place in order},
            "num_tokens": len(ids),
            "seed": request.seed,
            "interrupted": False,
        }
        sampling.write_samples([sample], path)
        rows = [f"{found[place]:.4f}  {self.labels[place]}" for place in order[:NUM_PRINTED]]
        return Generated([sample], "\n".join(rows), path)

    def export(self, folder: str | os.PathLike, jit_compile: bool, weight_dtype: str | None) -> dict[str, Any]:
        """Writes the SavedModel of a work folder into it, see `export_classifier`, and classifies a line with it.

        Classification has no loop to compile.
        """
        saved_model = workdir.open_workdir(folder) / exporting.SAVED_MODEL
        model: Any = workdir.load_model(folder)
        length = self.config.data.sequence_length
        path = tsa.export.export_classifier(model, saved_model, self.tokenizer, self.labels, length, weight_dtype)
        found = exporting.run_alone(path, "classify", {"text": [exporting.LINE]})
        proof = f"{exporting.LINE!r} is {found['label']!r} with probability {max(found['probabilities']):.4f}"
        return {"path": str(path), "line": exporting.LINE, **found, "proof": proof}


def _check_request(request, prompt):
    """Raises a `ValueError` for what classification cannot do."""
    if not prompt:
        raise ValueError("`prompt` must be a text to classify. Received: none.")
    if request.num_samples != 1:
        raise ValueError(f"`num_samples` must be 1 for a class. Received: num_samples={request.num_samples}.")
    given = {"complete": request.complete, "length": request.length, **request.settings}
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"`{name}` must be unset for classification. Received: {name}={value!r}.")
