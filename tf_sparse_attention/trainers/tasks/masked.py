"""Masked language modeling: a bidirectional model predicts the masked tokens of a text."""

from typing import ClassVar

from tf_sparse_attention.trainers.shared import components
from tf_sparse_attention.trainers.tasks import language_model
from tf_sparse_attention.trainers.tasks.task import Names


class Task(language_model.Task):
    """Masked language modeling, with the scores of language models; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        "data": language_model.Task.settings["data"],
        "model": components.LANGUAGE_MODEL,
        "train": language_model.Task.settings["train"],
    }
    _required: ClassVar[Names] = {"data": ("mask_rate",)}
    _excluded: ClassVar[Names] = {"model": ("causal",)}
