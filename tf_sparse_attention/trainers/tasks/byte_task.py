"""Base classes of tasks that model images or audio as byte sequences."""

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
from tf_sparse_attention.trainers.shared import components, evaluation, illustrations, sampling
from tf_sparse_attention.trainers.tasks.task import Names, Request, Show, Task

BYTES_PER_SNAPSHOT = 256  # bytes between two snapshots of a sample
LABELS = {"bits_per_dim": "bits per dimension", "bits_per_byte": "bits per byte"}


class ByteValidation(evaluation.TokenValidation):
    """Base class of validations that score every byte of images or audio.

    `data` is the result of the task's `open_split`. A subclass defines `metric`, the name of the score in bits per
    byte; `items`, "images" or "recordings"; `batches`, `num_items` and `examples`.
    """

    metric: ClassVar[str]
    items: ClassVar[str]

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        super().__init__(task, model, split, limit)
        self.data = task.open_split(split)
        self.clusters = illustrations.ClusterReports(model)

    def num_items(self) -> int:
        """Return the number of images or recordings."""
        raise NotImplementedError

    def metrics(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Return "loss" in nats per byte, and `metric` in bits per byte."""
        loss = totals["nats"] / max(totals["tokens"], 1)
        return {"loss": loss, self.metric: loss / math.log(2)}

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        return {"bytes": scores["tokens"], self.items: self.num_items()}

    @classmethod
    def describe(cls, scores: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            (cls.items, f": {scores[cls.items]}"),
            ("bytes", str(scores["bytes"])),
            (LABELS[cls.metric], f"{scores[cls.metric]:.4f}"),
        ]

    def can_draw(self) -> bool:
        """Return whether the model has a KV cache. Without it, sampling takes hours, and the reason is logged once."""
        reason = self.model.cache_unsupported_reason
        if reason is not None:
            logging.log_first_n(logging.INFO, "No samples of %s during training: %s.", 1, self.items, reason)
        return reason is None


class ByteTask(Task):
    """Base class of tasks with a codec between images or audio and bytes; see `Task`.

    In addition to the members of `Task`, a subclass defines `codec_class`, `make_codec()`, `open_split(split)`, and
    `expected_path`, a description of the files that `config.data.path` can name.
    """

    codec_class: ClassVar[Any]
    expected_path: ClassVar[str]
    validation: ClassVar[type[ByteValidation]]
    _required: ClassVar[Names] = {"model": ("causal",)}

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        if config.data.tfds is None and config.data.path is None:
            raise ValueError(
                f"`config.data.path` must be {self.expected_path}, or `config.data.tfds` a data set of TFDS, "
                f"for task={config.task}. Received: path=None, tfds=None."
            )
        super().__init__(config, state)

    def get_state(self) -> dict[str, Any]:
        return {"codec": self.codec.get_config()}

    @functools.cached_property
    def codec(self) -> Any:
        """The codec in the state of the run, or the codec of the data."""
        return self.codec_class.from_config(self._state["codec"]) if "codec" in self._state else self.make_codec()

    def make_codec(self) -> Any:
        raise NotImplementedError

    def open_split(self, split: str) -> Any:
        """Open the data of a split."""
        raise NotImplementedError

    def make_model(self) -> keras.Model:
        """Create a `LanguageModel` with 257 ids; see `components.make_model`."""
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
        """Draw samples of `length` ids, including the prompt, and write all samples so far with `write`.

        `prompts` is a function from the indices of samples to their prompts, int32 (T,) each. The result has
        dictionaries: "token_ids" including the prompt; "num_tokens" without the prompt; the "log_prob" and bits per
        byte of these tokens; "seed", "interrupted" and the settings.
        """
        defaults = {k: value for k, value in self.config.generate.to_dict().items() if k not in ("prompt", "length")}
        settings = request.settings if "num_beams" in request.settings else defaults | request.settings

        def snapshots(numbers):
            strategy = sampling.make_strategy(settings)
            every = BYTES_PER_SNAPSHOT if isinstance(strategy, tsa.generation.Sampling) else None
            seeds, num_ids = [request.seed + number for number in numbers], model.backbone.vocabulary_size
            for rows in model.generator.iterate(prompts(numbers), length, strategy, seeds, None, num_ids, every):
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

        return sampling.draw(snapshots, request.num_samples, write, show)

    def check_request(self, request: Request, unsupported: Sequence[str], suffix: str, same_prompt: bool) -> None:
        """Raise a `ValueError` if a field in `unsupported` is set, or the output file lacks the suffix.

        Beam search returns one sample per prompt, so it needs one sample if all samples have the same prompt.
        """
        items = self.validation.items
        for name in unsupported:
            value = getattr(request, name)
            if value is not None:
                # Shortened, because a prompt can be a whole file.
                raise ValueError(f"`{name}` must be unset for {items}. Received: {name}={reprlib.repr(value)}.")
        checks.check_count("num_samples", request.num_samples)
        if same_prompt and "num_beams" in request.settings and request.num_samples > 1:
            raise ValueError(f"`num_samples` must be 1 for beam search. Received: num_samples={request.num_samples}.")
        if request.path is not None and not str(request.path).endswith(suffix):
            raise ValueError(f"`output` must be a file NAME{suffix} for {items}. Received: output={request.path}.")

    def describe_samples(self, samples: Sequence[dict[str, Any]]) -> list[str]:
        """Return one line of text per sample."""
        metric = self.validation.metric
        return [f"seed {sample['seed']}: {sample[metric]:.4f} {LABELS[metric]}" for sample in samples]
