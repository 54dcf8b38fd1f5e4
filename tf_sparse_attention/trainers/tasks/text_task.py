"""Base class of tasks with text and a tokenizer."""

import functools
from typing import Any

from tf_sparse_attention.trainers.shared import components, sample_sources, sampling, tokenizers
from tf_sparse_attention.trainers.tasks.task import Generated, Request, Show, Task

TOKENIZER = ("tokenizer", "vocabulary")  # settings of `config.data`


class TextTask(Task):
    """Base class of tasks with text. The `source` has `documents(split)`, the texts of a split; see `Task`."""

    @functools.cached_property
    def source(self) -> Any:
        """The text that `config.data` specifies."""
        return components.make_text_source(self.config)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer in the state of the run, or the tokenizer that `config.data` specifies."""
        if "tokenizer" in self._state:
            return tokenizers.from_description(self._state["tokenizer"])
        return tokenizers.make_tokenizer(self.config.data.tokenizer, self.config.data.vocabulary)

    def get_state(self) -> dict[str, Any]:
        """Return the description of the tokenizer."""
        return {"tokenizer": tokenizers.describe(self.tokenizer)}

    def make_sample_source(self, model: Any) -> sample_sources.LocalModelSource:
        """Return the sample source of a model."""
        return sample_sources.LocalModelSource(model, self.tokenizer, self.config.generate.to_dict())

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Generate text; see `sampling.generate_text`."""
        return sampling.generate_text(self.make_sample_source(model), request, show)
