"""What tasks of bytes that are no text have in common: images and sound, and a codec between them and ids."""

import functools
import math
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import ml_collections
import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention import checks
from tf_sparse_attention.trainers.shared import (
    backbone_settings,
    components,
    evaluation,
    illustrations,
    sample_sources,
    sampling,
)
from tf_sparse_attention.trainers.tasks.task import Request, Show, Task

CHUNK = 256  # bytes between two snapshots of a sample
LABELS = {"bits_per_dim": "bits per dimension", "bits_per_byte": "bits per byte"}


class ByteValidation(evaluation.TokenValidation):
    """Scores each byte once, and shows what the model draws. Base class.

    `data` is what `open_split` of the task returns. A subclass has `metric`, the name of the bits per byte, `items`,
    the name of what is scored, `batches`, `num_items` and `examples`.
    """

    metric: ClassVar[str]
    items: ClassVar[str]

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        super().__init__(task, model, split, limit)
        self.data = task.open_split(split)
        self.clusters = illustrations.ClusterReports(model)

    def num_items(self) -> int:
        """Returns the number of images or recordings."""
        raise NotImplementedError

    def figures(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Returns "loss" in nats per byte, and the same in bits as `metric`."""
        loss = totals["nats"] / max(totals["tokens"], 1)
        return {"loss": loss, self.metric: loss / math.log(2)}

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        """Returns the numbers of bytes and of items."""
        return {"bytes": scores["tokens"], self.items: self.num_items()}

    @classmethod
    def describe(cls, scores: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            (cls.items, f": {scores[cls.items]}"),
            ("bytes", str(scores["bytes"])),
            (LABELS[cls.metric], f"{scores[cls.metric]:.4f}"),
        ]

    def can_draw(self) -> bool:
        """Returns whether the model draws samples in less than hours; logs once why not."""
        reason = self.model.cache_unsupported_reason
        if reason is not None:
            logging.log_first_n(logging.INFO, "No %s are drawn while training: %s.", 1, self.items, reason)
        return reason is None


class ByteTask(Task):
    """Base class of the tasks of bytes that are no text; see `Task`.

    A subclass has `codec_class`; `found_in`, what `config.data.path` may be; `make_codec()`, that of the data;
    `open_split(split)`, what is scored of it; and the members that `Task` names.
    """

    codec_class: ClassVar[Any]
    found_in: ClassVar[str]
    validation: ClassVar[type[ByteValidation]]

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        if not config.model.causal:
            raise ValueError(f"`config.model.causal` must be True for task={config.task}. Received: causal=False.")
        if config.data.tfds is None and config.data.path is None:
            raise ValueError(
                f"`config.data.path` must be {self.found_in}, or `config.data.tfds` the name of a data set of TFDS, "
                f"for task={config.task}. Received: neither."
            )
        super().__init__(config, state)

    def get_state(self) -> dict[str, Any]:
        """Returns the configuration of the codec."""
        return {"codec": self.codec.get_config()}

    @functools.cached_property
    def codec(self) -> Any:
        """The codec of the items, that of an earlier start or that of the data."""
        return self.codec_class.from_config(self._state["codec"]) if "codec" in self._state else self.make_codec()

    def make_codec(self) -> Any:
        """Returns the codec of the data."""
        raise NotImplementedError

    def open_split(self, split: str) -> Any:
        """Returns the data of a split."""
        raise NotImplementedError

    def source_options(self, *names: str) -> dict[str, Any]:
        """Returns the settings of `config.data` that are given: those that name the data, and others by name."""
        given = backbone_settings.set_values(self.config.data)
        return {name: given[name] for name in ("tfds", "path", "local_dir", "data_dir", *names) if name in given}

    def make_model(self) -> keras.Model:
        """Returns a `LanguageModel` of 257 ids, see `components.make_model`."""
        return components.make_model(self.config, self.codec.vocabulary_size)

    def draw(
        self,
        model: Any,
        request: Request,
        prompts: Callable[[Sequence[int]], Sequence[np.ndarray]],
        length: int,
        write: Callable[[list[dict[str, Any]]], None],
        show: Show | None,
    ) -> list[dict[str, Any]]:
        """Returns samples that a model draws, and writes them.

        Args:
            model: a `LanguageModel` of 257 ids.
            request: its number of samples, seed and settings are used.
            prompts: function from the numbers of samples to the ids, int32 (T,), that each begins with.
            length: ids of a sample, prompt included.
            write: function of the samples so far.
            show: function of all samples so far, called whenever they grow.

        Returns:
            Dictionaries with "token_ids", prompt included, "num_tokens" that were drawn, their "log_prob" and bits per
            byte, "seed", "interrupted" and the settings.
        """
        defaults = {k: value for k, value in self.config.generate.to_dict().items() if k not in ("prompt", "length")}
        settings = request.settings if "num_beams" in request.settings else defaults | request.settings

        def snapshots(numbers):
            seeds = [request.seed + number for number in numbers]
            return self._snapshots(model, prompts(numbers), length, seeds, settings)

        return sampling.draw(snapshots, request.num_samples, write, show)

    def _snapshots(self, model, prompts, length, seeds, settings):
        """Yields a sample for each prompt while they grow."""
        strategy = sample_sources.make_strategy(settings)
        every = CHUNK if isinstance(strategy, tsa.generation.Sampling) else None
        num_ids = model.backbone.vocabulary_size
        for rows in model.generator.iterate(prompts, length, strategy, seeds, None, num_ids, every):
            yield [
                {
                    "token_ids": row.token_ids,
                    "num_tokens": len(row.log_probs),
                    "log_prob": round(float(row.log_probs.sum()), 3),
                    self.validation.metric: float(-row.log_probs.sum() / np.log(2) / max(len(row.log_probs), 1)),
                    "seed": seed,
                    **settings,
                }
                for row, seed in zip(rows, seeds, strict=True)
            ]

    def check_request(self, request: Request, unsupported: Sequence[str], suffix: str, same_prompt: bool) -> None:
        """Raises a `ValueError` for a request that does not suit.

        Args:
            request: the `Request`.
            unsupported: names of what has to be unset.
            suffix: the end of the name of a file.
            same_prompt: whether all samples have one prompt. Beams find one sample for a prompt.
        """
        items = self.validation.items
        for name in unsupported:
            value = getattr(request, name)
            if value is not None:
                # In short: the prompt may be a whole file.
                raise ValueError(f"`{name}` must be unset for {items}. Received: {name}={reprlib.repr(value)}.")
        checks.check_count("num_samples", request.num_samples)
        if same_prompt and "num_beams" in request.settings and request.num_samples > 1:
            raise ValueError(
                f"`num_samples` must be 1 for beams, which find one sample. Received: {request.num_samples}."
            )
        if request.path is not None and not str(request.path).endswith(suffix):
            raise ValueError(f"`output` must be a file NAME{suffix} for {items}. Received: {request.path}.")
        sampling.check_path(request.path)

    def describe_samples(self, samples: Sequence[dict[str, Any]]) -> list[str]:
        """Returns a line of text for each sample."""
        metric = self.validation.metric
        return [f"seed {sample['seed']}: {sample[metric]:.4f} {LABELS[metric]}" for sample in samples]
