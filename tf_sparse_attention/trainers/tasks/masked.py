"""Masked language modeling: a bidirectional model predicts the masked tokens of a text."""

from typing import Any, ClassVar

import ml_collections

from tf_sparse_attention.trainers.tasks import language_model
from tf_sparse_attention.trainers.tasks.task import LANGUAGE_MODEL, Names, check_settings


class Task(language_model.Task):
    """Masked language modeling, with the scores of language models; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        "data": language_model.Task.settings["data"],
        "model": LANGUAGE_MODEL,
        "train": language_model.Task.settings["train"],
    }

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        check_settings(config, {"data": ("mask_rate",)}, {"model": ("causal",)})
        super().__init__(config, state)
