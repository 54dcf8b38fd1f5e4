"""Text classification with an encoder."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.data.batches.text_buckets import pack_texts
from tf_sparse_attention.generation import bucket_length
from tf_sparse_attention.models import Backbone, Encoder, LanguageModel, SequenceClassifier
from tf_sparse_attention.models.rebuilding import rebuilt_backbone
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, evaluation, loading, sampling
from tf_sparse_attention.trainers.tasks.language_model import LINE, TOKENIZER, TextTask
from tf_sparse_attention.trainers.tasks.task import Examples, ExportTest, Generated, Names, Request, Show

NUM_PRINTED = 10  # labels printed for a prompt
# Settings of `config.model` that do not change a trained encoder.
OF_HEAD = ("start_from", "pooling", "dropout", "causal")
NUM_SHOWN, SHOWN_CHARACTERS = 4, 400  # texts in TensorBoard, and characters per text


class Validation(evaluation.Validation):
    """Scores of every text: nats of the true label, and the predicted label."""

    columns = ("weights", "nats", "classes", "predictions")

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        super().__init__(task, model, split, limit)
        self.buckets = task.open_buckets(split, limit)

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Return the texts. Texts that are too long are truncated."""
        return {"": self.buckets.evaluation_batches()}

    def score_rows(self, model: Any, inputs: Any, targets: Any, weights: Any) -> Sequence[Any]:
        logits = model(inputs, training=False)
        nats = keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True)
        return weights, nats, targets, ops.argmax(logits, axis=-1)

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        """Return "nats" of all texts, and "confusion", int (C, C): numbers of texts by true and predicted class."""
        texts = rows[rows[:, 0] > 0]  # without padding rows
        confusion = np.zeros([self.model.num_classes] * 2, int)
        np.add.at(confusion, tuple(texts[:, 2:].astype(int).T), 1)
        return {"nats": texts[:, 1].sum(), "confusion": confusion}

    def metrics(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Return "loss" in nats per text, "accuracy" and "macro_f1"; see `class_scores`."""
        return class_scores(totals["nats"], np.array(totals["confusion"]))

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        """Return the "labels", the number of "texts", and the number of truncated texts, "cut"."""
        counts = {"texts": int(np.sum(scores["confusion"])), "cut": self.buckets.num_cut}
        return {**counts, "labels": self.task.labels}

    @staticmethod
    def describe(scores: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            ("texts", f": {scores['texts']}, {scores['cut']} of them truncated"),
            ("accuracy", f"{scores['accuracy']:.4f} of {len(scores['labels'])} classes"),
            ("macro F1", f"{scores['macro_f1']:.4f}"),
            ("loss", f"{scores['loss']:.4f} nats per text"),
        ]

    def examples(self) -> Examples:
        """Return some texts with their predicted and true labels."""
        numbers, store, task = self.buckets.chosen[:NUM_SHOWN], self.buckets.store, self.task
        documents, texts = [store.document(number) for number in numbers], {}
        probabilities = task.probabilities(self.model, documents)
        for index, (number, ids, row) in enumerate(zip(numbers, documents, probabilities, strict=True)):
            true, predicted = task.labels[self.buckets.classes[number]], task.labels[int(np.argmax(row))]
            text = task.tokenizer.detokenize(ids[:-1])[:SHOWN_CHARACTERS]
            texts[f"example_{index}"] = f"predicted {predicted} ({row.max():.2f}), true {true}\n\n{text}"
        return Examples(texts=texts)


def class_scores(nats: float, confusion: np.ndarray) -> dict[str, float]:
    """Compute "loss" in nats per text, "accuracy", and "macro_f1", the mean of 2 TP / (2 TP + FP + FN) over classes.

    A class without true or predicted texts has an F1 of 0, as in `keras.metrics.F1Score(average="macro")`. `nats` is
    the sum over all texts, and `confusion`, int (C, C), has numbers of texts by true and predicted class.
    """
    correct, count = np.diag(confusion), max(int(confusion.sum()), 1)
    f1 = 2 * correct / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    return {"loss": nats / count, "accuracy": float(correct.sum() / count), "macro_f1": float(f1.mean())}


class Task(TextTask):
    """Text classification; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        "data": (*TOKENIZER, "text_feature", "label_feature"),
        "model": ("start_from", "pooling", "causal", "grid"),
        "train": ("evaluation_windows",),
        "generate": ("prompt",),
    }
    validation = Validation
    _excluded: ClassVar[Names] = {"model": ("causal",)}

    def get_state(self) -> dict[str, Any]:
        """Return the description of the tokenizer, and the labels."""
        return {**super().get_state(), "labels": self.labels}

    @functools.cached_property
    def source(self) -> tsa.data.LabeledSource:
        return tsa.data.open_labeled(**components.data_settings(self.config, "text_feature", "label_feature"))

    @functools.cached_property
    def labels(self) -> list[str]:
        """The labels of the training data, in class order."""
        labels = self._state.get("labels") or self.source.classes(self.config.data.train_split)
        if len(labels) < 2:
            raise ValueError(f"`config.data` must have at least two labels. Received: {labels}.")
        return list(labels)

    def open_buckets(self, split: str, max_texts: int | None = None) -> tsa.data.LabeledBuckets:
        """Open the texts of a split, or `max_texts` evenly spaced texts, bucketed by length."""
        data, source = self.config.data, self.source
        store = tsa.data.open_token_store(source.text, self.tokenizer, split)
        chosen = None
        if max_texts is not None and max_texts < store.num_documents:
            chosen = np.linspace(0, store.num_documents - 1, max_texts).astype("int64")
        sizes = data.batch_size, data.sequence_length
        return tsa.data.LabeledBuckets(store, source.class_ids(split, self.labels), *sizes, chosen)

    def training_batches(self) -> tsa.data.Batches:
        return self.open_buckets(self.config.data.train_split).training_batches(self.config.seed)

    def make_model(self) -> keras.Model:
        """Create a `SequenceClassifier` with a new encoder, or with the encoder of `config.model.start_from`."""
        settings = components.set_values(self.config.model)
        head = {"pooling": settings["pooling"], "dropout": settings.get("dropout", 0.0)}
        head["dtype"] = self.config.train.dtype
        if "start_from" in settings:
            return SequenceClassifier(self._load_encoder(settings["start_from"]), len(self.labels), **head)
        missing = [name for name in components.SIZES if not settings.get(name)]
        if missing:
            raise ValueError(f"`config.model` must have {', '.join(missing)}, or start_from. Received: {settings}.")
        backbone = Backbone(self.tokenizer.vocabulary_size, **components.backbone_arguments(self.config))
        return SequenceClassifier(backbone, len(self.labels), **head)

    def _load_encoder(self, path):
        """Load an encoder, or the encoder of a masked language model or classifier."""
        model, config = loading.load_model("config.model.start_from", path), self.config
        encoder = model.backbone if isinstance(model, (LanguageModel, SequenceClassifier)) else model
        if not isinstance(encoder, (Backbone, Encoder)) or getattr(encoder, "causal", False):
            raise ValueError(
                "`config.model.start_from` must be an `Encoder`, a bidirectional `Backbone`, or a model with one. "
                f"Received: a {type(model).__name__} in {path}."
            )
        defaults = base.get_config().model
        for name, value in config.model.items():
            if name not in OF_HEAD and value not in (None, defaults[name]):
                raise ValueError(
                    f"`config.model.{name}` must be unset with config.model.start_from. Received: {name}={value!r}."
                )
        if encoder.vocabulary_size < self.tokenizer.vocabulary_size:
            raise ValueError(
                "`config.data.tokenizer` must be the tokenizer of the model in config.model.start_from. "
                f"Received: {self.tokenizer.vocabulary_size} ids, but the model has {encoder.vocabulary_size}."
            )
        return rebuilt_backbone(encoder, dtype=config.train.dtype) if isinstance(encoder, Backbone) else encoder

    def compile_arguments(self) -> dict[str, Any]:
        """Return the cross-entropy as "loss", and a metric "loss" with the mean over texts.

        The loss of a batch is divided by the number of all rows, so that every text has the same weight in an epoch.
        Padding rows count as texts with 0 nats. The metric ignores padding rows.
        """
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metric = keras.metrics.SparseCategoricalCrossentropy("loss", from_logits=True)
        return {"loss": loss, "weighted_metrics": [metric]}

    def probabilities(self, model: Any, documents: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the label probabilities, float32 (documents, C), of documents, int32 ids ending with the end id."""
        length = min(bucket_length(1 + max(map(len, documents))), self.config.data.sequence_length)
        logits = model(pack_texts(documents, length), training=False)
        return ops.convert_to_numpy(ops.softmax(logits, axis=-1))

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Classify a prompt, and write the labels with their probabilities, most likely first."""
        prompt = self.config.generate.prompt.encode() if request.prompt is None else request.prompt
        if not prompt:
            raise ValueError("`prompt` must be a text to classify. Received: an empty prompt.")
        if request.num_samples != 1:
            raise ValueError(f"`num_samples` must be 1 for classification. Received: {request.num_samples}.")
        for name, value in {"complete": request.complete, "length": request.length, **request.settings}.items():
            if value is not None:
                raise ValueError(f"`{name}` must be unset for classification. Received: {name}={value!r}.")
        path = sampling.output_path(request.path, sampling.SAMPLES)
        ids = np.append(self.tokenizer.tokenize(prompt), self.tokenizer.end_id).astype("int32")
        (probabilities,) = self.probabilities(model, [ids])
        order = np.argsort(-probabilities, kind="stable")
        sample = {
            "prompt": prompt.decode("utf-8", errors="replace"),
            "label": self.labels[order[0]],
            "probabilities": {self.labels[index]: float(probabilities[index]) for index in order},
            "num_tokens": len(ids),
            "seed": request.seed,
            "interrupted": False,
        }
        sampling.write_samples([sample], path)
        rows = [f"{probabilities[index]:.4f}  {self.labels[index]}" for index in order[:NUM_PRINTED]]
        return Generated([sample], "\n".join(rows), path)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> ExportTest:
        """Write a SavedModel with `export_classifier`. `jit_compile` is unused, because there is no loop."""
        length = self.config.data.sequence_length
        tsa.export.export_classifier(model, path, self.tokenizer, self.labels, length, weight_dtype)

        def describe(outputs):
            return f"{LINE!r} is {outputs['label']!r} with probability {max(outputs['probabilities']):.4f}"

        return ExportTest("classify", {"text": [LINE]}, describe)
