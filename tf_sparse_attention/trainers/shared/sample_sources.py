"""Sources of samples: the model of a run or of a file, a preset, a SavedModel.

Each source has `defaults`, a dictionary of "prompt", "length" and settings, and `snapshots`, a generator of the growing
samples of one prompt.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.generation import BeamSearch, Sampling
from tf_sparse_attention.models.prompts import Prompts
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import loading
from tf_sparse_attention.trainers.shared.loading import load_language_model

CHUNK = 16  # tokens between two snapshots
DEFAULTS = base.get_config().generate.to_dict()


class LocalModelSource:
    """Samples of a model in this process.

    Args:
        model: a `LanguageModel`.
        tokenizer: tokenizer of the model.
        defaults: dictionary of "prompt", "length" and settings.
    """

    def __init__(self, model: Any, tokenizer: Any, defaults: dict[str, Any] = DEFAULTS) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = dict(defaults)

    def snapshots(
        self, prompt: bytes, seeds: Sequence[int], length: int, settings: dict[str, Any]
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield lists of samples, one per seed: first the stable prefixes of their texts, then the complete texts.

        Args:
            prompt: `bytes`.
            seeds: integers.
            length: maximum number of tokens to add.
            settings: arguments of `Sampling`, or of `BeamSearch` with "num_beams". Beams are yielded once, at the end.

        Raises:
            ValueError: If a setting is out of range or unknown.
        """
        strategy = make_strategy(settings)
        chunk_size = CHUNK if isinstance(strategy, Sampling) else None
        ids, rows = self.tokenizer.tokenize(prompt), None
        prompt_text = self.tokenizer.detokenize(ids)
        for rows in self._row_lists(ids, seeds, length, strategy, chunk_size):
            yield self._samples(rows, seeds, prompt_text, settings, self.tokenizer.stable_prefix)
        yield self._samples(rows, seeds, prompt_text, settings, self.tokenizer.detokenize)

    def _row_lists(self, ids, seeds, length, strategy, chunk_size):
        """Return an iterator over lists of growing rows, one row per seed."""
        prompts, max_length, stop_token_ids = [ids] * len(seeds), len(ids) + length, (self.tokenizer.end_id,)
        settings = strategy, seeds, stop_token_ids, self.tokenizer.vocabulary_size
        return self.model.generator.iterate(prompts, max_length, *settings, chunk_size)

    def _samples(self, rows, seeds, prompt, settings, as_text):
        return [
            {
                "prompt": prompt,
                "text": as_text(row.token_ids),
                "num_tokens": len(row.log_probs),
                "log_prob": round(float(row.log_probs.sum()), 3),
                "finished": row.finished,
                "seed": seed,
                **settings,
            }
            for row, seed in zip(rows, seeds, strict=True)
        ]


class TranslationSource(LocalModelSource):
    """Samples of an encoder-decoder in this process: the prompt is the source, and samples are targets."""

    def _row_lists(self, ids, seeds, length, strategy, chunk_size):
        end_id = self.tokenizer.end_id
        sources = Prompts([np.append(ids, end_id).astype("int32")] * len(seeds), False)
        request = self.model.generation_request(sources, length, strategy, seeds, (end_id,), self.tokenizer)
        return self.model.generator.iterate(**request, chunk_size=chunk_size)


class PrefixSource(LocalModelSource):
    """Samples of a language model with a source as prefix: the prompt is the source, and samples exclude it."""

    def _row_lists(self, ids, seeds, length, strategy, chunk_size):
        source = np.append(ids, self.tokenizer.end_id).astype("int32")
        for rows in super()._row_lists(source, seeds, length, strategy, chunk_size):
            yield [row._replace(token_ids=row.token_ids[len(source) :]) for row in rows]


def make_strategy(settings: dict[str, Any]) -> Any:
    """Create a `Sampling` from settings, or a `BeamSearch` if they include "num_beams".

    Raises:
        ValueError: If a setting is out of range or unknown.
    """
    kind: Any = BeamSearch if "num_beams" in settings else Sampling
    unknown = set(settings) - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        without = "must be unset for" if kind is BeamSearch else "is required for"
        raise ValueError(f"Beam search (`num_beams`) {without} {', '.join(sorted(unknown))}. Received: {settings}.")
    return kind(**settings)


class SavedModelSource:
    """Samples of a SavedModel from `tf_sparse_attention.export`. Its only settings are `temperature` and `top_p`.

    Args:
        folder: path of the SavedModel.

    Raises:
        ValueError: If the SavedModel does not exist, or is not from this version of the library.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        import tensorflow as tf

        if not (pathlib.Path(folder).expanduser() / "saved_model.pb").is_file():
            raise ValueError(f"`saved_model` must be the folder of a SavedModel. Received: {folder}.")
        try:
            self._signatures = tf.saved_model.load(str(pathlib.Path(folder).expanduser())).signatures
        except (OSError, tf.errors.OpError, *loading.DAMAGE_ERRORS) as error:
            raise ValueError(
                "`saved_model` must be a readable SavedModel: restore it from a copy, or export it again. "
                f"Received: {folder}, with {loading.short_reason(error)}."
            ) from error
        outputs = {name: set(function.structured_outputs) for name, function in self._signatures.items()}
        if "num_tokens" not in outputs.get("score", ()) or "num_tokens" not in outputs.get("generate", ()):
            raise ValueError(
                "`saved_model` must be a language model from this version of `tsa-export`, with num_tokens in `score` "
                f"and `generate`. Received: {folder}, with {outputs}."
            )
        self.defaults = dict(DEFAULTS)

    def snapshots(
        self, prompt: bytes, seeds: Sequence[int], length: int, settings: dict[str, Any]
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield growing lists of complete samples; see `LocalModelSource.snapshots`."""
        import tensorflow as tf

        unknown = set(settings) - {"temperature", "top_p"}
        if unknown:
            raise ValueError(
                f"A SavedModel only has the settings temperature and top_p. Received: {', '.join(sorted(unknown))}."
            )
        start = int(self._signatures["score"](text=tf.constant([prompt]))["num_tokens"][0])
        samples = []
        for seed in seeds:
            try:
                result = self._signatures["generate"](
                    prompt=tf.constant([prompt]),
                    max_length=tf.constant(start + length),
                    temperature=tf.constant(float(settings["temperature"])),
                    top_p=tf.constant(float(settings["top_p"])),
                    seed=tf.constant(seed % 2**32 - (2**32 if seed % 2**32 >= 2**31 else 0)),
                )
            except tf.errors.InvalidArgumentError as error:
                raise ValueError(error.message.strip().splitlines()[0]) from error
            num_tokens = int(result["num_tokens"][0]) - start
            samples.append(
                {
                    "prompt": prompt.decode("utf-8", errors="replace"),
                    "text": result["text"][0].numpy().decode("utf-8"),
                    "num_tokens": num_tokens,
                    "log_prob": round(float(result["log_prob"][0]), 3),
                    "finished": num_tokens < length,  # False for a document that ends exactly at the last token
                    "seed": seed,
                    **settings,
                }
            )
            yield samples


def from_file(path: str | os.PathLike, tokenizer: Any) -> LocalModelSource:
    """Create the `LocalModelSource` of a `.keras` file.

    Raises:
        ValueError: If the file does not exist, or the model has fewer ids than the tokenizer.
    """
    return LocalModelSource(load_language_model("model", path, tokenizer.vocabulary_size), tokenizer)


def from_preset(name: str, tokenizer: Any) -> LocalModelSource:
    """Create the `LocalModelSource` of a preset with random weights, for tests of speed and memory.

    Raises:
        ValueError: If the name is unknown.
    """
    model = tsa.models.LanguageModel.from_preset(name, tokenizer.vocabulary_size)
    logging.warning("The preset %s has random weights. Its text is meaningless.", name)
    return LocalModelSource(model, tokenizer)
