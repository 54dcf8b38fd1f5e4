"""What tasks of text have in common: a tokenizer, and text that the model writes."""

import functools
from typing import Any

from tf_sparse_attention.trainers.shared import components, sample_sources, sampling, tokenizers
from tf_sparse_attention.trainers.tasks.task import Generated, Request, Show, Task

TOKENIZER = ("tokenizer", "vocabulary")  # settings of `config.data`


class TextTask(Task):
    """Base class of the tasks of text; see `Task`. Its `source` has `documents(split)`, the texts of a split."""

    @functools.cached_property
    def source(self) -> Any:
        """The text that `config.data` names."""
        return components.make_text_source(self.config)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of all text, that of an earlier start or the one that `config.data` names."""
        if "tokenizer" in self._state:
            return tokenizers.from_description(self._state["tokenizer"])
        return tokenizers.make_tokenizer(self.config.data.tokenizer, self.config.data.vocabulary)

    def get_state(self) -> dict[str, Any]:
        """Returns the description of the tokenizer."""
        return {"tokenizer": tokenizers.describe(self.tokenizer)}

    def make_sample_source(self, model: Any) -> sample_sources.LocalModelSource:
        """Returns what continues prompts with a model."""
        return sample_sources.LocalModelSource(model, self.tokenizer, self.config.generate.to_dict())

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Returns text that a model writes; see `sampling.generate_text`."""
        return sampling.generate_text(self.make_sample_source(model), request, show)
