"""The task of language models: the next token of a text, or with `config.data.mask_rate` its hidden ones."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import components, evaluation, exporting, illustrations, scoring
from tf_sparse_attention.trainers.tasks.parts import Shown, TrainingData
from tf_sparse_attention.trainers.tasks.settings import LANGUAGE_MODEL, SAMPLING, Names
from tf_sparse_attention.trainers.tasks.text_task import TOKENIZER, TextTask


class Task(TextTask):
    """A language model of a text; see `trainers.tasks.registry`."""

    settings: ClassVar[Names] = {
        "data": ("pattern", "text_field", "text_feature", *TOKENIZER, "use_packing", "mask_rate", "overlap"),
        "model": (*LANGUAGE_MODEL, "memory_length"),
        "train": ("evaluation_windows",),
        "generate": ("prompt", "length", *SAMPLING),
    }

    def open_data(self) -> TrainingData:
        """Returns the windows of the training split, or consecutive segments of it."""
        data, source = self.config.data, components.make_text_source(self.config)
        store = tsa.data.open_token_store(source, self.tokenizer, data.train_split)
        batches = components.make_batches(self.config, store)
        tokens_per_step = data.batch_size * data.sequence_length
        if store.num_tokens < data.sequence_length:
            logging.warning(
                "The text has %d tokens, less than one window of config.data.sequence_length=%d: the rest is padding.",
                store.num_tokens,
                data.sequence_length,
            )
        logging.info("%s: %d tokens to train on, %d a step", source.name, store.num_tokens, tokens_per_step)
        return TrainingData(source, source.fingerprint, batches, tokens_per_step)

    def make_model(self) -> keras.Model:
        """Returns a `LanguageModel`, see `components.make_model`."""
        return components.make_model(self.config, self.tokenizer.vocabulary_size)

    def make_training_model(self, model: Any) -> keras.Model:
        """Returns the language model, or a `StatefulModel` of it if it has segment memory."""
        if not self.config.model.memory_length:
            return model
        name = "reader"  # part of variable paths in checkpoints
        return tsa.models.StatefulModel(model, self.config.data.batch_size, name=name)

    def make_loss(self) -> keras.losses.Loss:
        """Returns the mean nats a token."""
        return tsa.models.language_model_loss()

    def make_validation(self, model: Any, execution: dict[str, Any]) -> "Validation":
        """Returns the `Validation` of a model; `execution` has arguments of `keras.Model.compile`."""
        source = components.make_text_source(self.config)
        store = tsa.data.open_token_store(source, self.tokenizer, self.config.data.validation_split)
        return Validation(self, model, store, execution)

    def evaluate(self, folder: str | os.PathLike, split: str, overrides: Any = None) -> dict[str, Any]:
        """Returns what `evaluation.evaluate` does."""
        return evaluation.evaluate(folder, split, overrides)

    def export(self, folder: str | os.PathLike, jit_compile: bool, weight_dtype: str | None) -> dict[str, Any]:
        """Returns what `exporting.export` does."""
        return exporting.export(folder, jit_compile, weight_dtype)

    def as_text(self, scores: dict[str, Any]) -> str:
        """Returns the scores as text, a line each."""
        return evaluation.as_text(scores)


class Validation:
    """Scores the validation split while a model is trained, and shows what the model is like.

    Args:
        task: a `Task`.
        model: its model.
        store: token store of the split.
        execution: arguments of `keras.Model.compile`.
    """

    def __init__(self, task: Task, model: Any, store: Any, execution: dict[str, Any]) -> None:
        self.task = task
        self.model = model
        self.store = store
        self._scorer = scoring.make_scorer(model, execution, task.config.data.batch_size)
        self._health: tsa.analysis.Health | None = None  # the report before, from which drift is measured

    def score(self, devices: Any, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, float]:
        """Returns the loss in nats a token, as that of training, bits per byte and perplexities."""
        config = self.task.config
        metrics = scoring.score(
            self._scorer,
            self.store,
            devices,
            config.data.batch_size,
            config.data.sequence_length,
            config.data.use_packing,
            config.data.mask_rate,
            max_windows=config.train.evaluation_windows or None,
            callbacks=callbacks,
        )
        names = ("bits_per_byte", "perplexity", "perplexity_per_word")
        found = {name: metrics[name] for name in names if metrics[name] is not None}
        return {"loss": metrics["nats"] / max(metrics["tokens"], 1), **found}

    def show(self) -> Shown:
        """Returns a text of the model's own, the use of its clusters, pictures of routes and of spans."""
        config, tokenizer = self.task.config, self.task.tokenizer
        first = self.store.document(0)[: config.data.sequence_length]
        pictures = dict(illustrations.pictures(self.model, tokenizer, tokenizer.detokenize(first)))
        texts, scalars = {}, {}
        self._health = illustrations.health_of(self.model, first, self._health)
        if self._health is not None:
            texts["health"] = str(self._health)
            pictures |= illustrations.cluster_pictures(self._health)
            scalars = illustrations.health_scalars(self._health)
        if config.model.causal:
            texts["sample"] = illustrations.sample_text(self.model, tokenizer, config.generate)
        return Shown(scalars, texts, pictures)
