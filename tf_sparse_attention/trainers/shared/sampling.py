"""Generation of text, for `tsa-generate`.

A source of samples is the model of a run or of a file, a preset, or a SavedModel. It has `defaults`, a dictionary of
"prompt", "length" and settings, and `snapshots`, a generator of the growing samples of one prompt.
"""

import dataclasses
import json
import os
import pathlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.generation import BeamSearch, Sampling
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.models.prompts import Prompts
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import loading
from tf_sparse_attention.trainers.tasks.task import Generated, Request, Show

SAMPLES = "samples.jsonl"
BATCH_SIZE = 8
CHUNK, CHAT_CHUNK = 16, 4  # tokens between two snapshots, and in a piece of an answer
DEFAULTS = base.get_config().generate.to_dict()


class LocalModelSource:
    """Samples of a `LanguageModel` in this process, with its tokenizer and its `defaults`."""

    def __init__(self, model: Any, tokenizer: Any, defaults: dict[str, Any] = DEFAULTS) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = dict(defaults)

    def snapshots(
        self, prompt: bytes, seeds: Sequence[int], length: int, settings: dict[str, Any]
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield lists of samples, one per seed: first the stable prefixes of their texts, then the complete texts.

        `length` is the maximum number of tokens to add. `settings` are arguments of `Sampling`, or of `BeamSearch` with
        "num_beams"; beams are yielded once, at the end.

        Raises:
            ValueError: If a setting is out of range or unknown.
        """
        strategy = make_strategy(settings)
        chunk_size = CHUNK if isinstance(strategy, Sampling) else None
        ids, rows = self.tokenizer.tokenize(prompt), None
        prompt_text = self.tokenizer.detokenize(ids)
        for rows in self._row_lists([ids] * len(seeds), seeds, length, strategy, chunk_size):
            yield self._samples(rows, seeds, prompt_text, settings, self.tokenizer.stable_prefix)
        yield self._samples(rows, seeds, prompt_text, settings, self.tokenizer.detokenize)

    def generate(self, prompts: Sequence[np.ndarray], length: int, strategy: Any) -> list[str]:
        """Return a text per prompt of ids, without the end id. `strategy` draws no random numbers."""
        *_, rows = self._row_lists(prompts, 0, length, strategy, None)
        return [self.tokenizer.detokenize(row.token_ids) for row in rows]

    def _row_lists(self, prompts, seeds, length, strategy, chunk_size):
        """Return an iterator over lists of growing rows, one row per prompt."""
        max_length, stop_token_ids = max(map(len, prompts)) + length, (self.tokenizer.end_id,)
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

    def _row_lists(self, prompts, seeds, length, strategy, chunk_size):
        end_id = self.tokenizer.end_id
        sources = Prompts([np.append(ids, end_id).astype("int32") for ids in prompts], False)
        request = self.model.generation_request(sources, length, strategy, seeds, (end_id,), self.tokenizer)
        return self.model.generator.iterate(**request, chunk_size=chunk_size)


class PrefixSource(LocalModelSource):
    """Samples of a language model with a source as prefix: the prompt is the source, and samples exclude it."""

    def _row_lists(self, prompts, seeds, length, strategy, chunk_size):
        sources = [np.append(ids, self.tokenizer.end_id).astype("int32") for ids in prompts]
        for rows in super()._row_lists(sources, seeds, length, strategy, chunk_size):
            targets = [row.token_ids[len(source) :][:length] for row, source in zip(rows, sources, strict=True)]
            yield [row._replace(token_ids=target) for row, target in zip(rows, targets, strict=True)]


class SavedModelSource:
    """Samples of a SavedModel from `tf_sparse_attention.export`. Its only settings are `temperature` and `top_p`."""

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


def make_strategy(settings: dict[str, Any]) -> Any:
    """Create a `Sampling` from settings, or a `BeamSearch` if they include "num_beams"."""
    kind: Any = BeamSearch if "num_beams" in settings else Sampling
    unknown = set(settings) - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        without = "must be unset for" if kind is BeamSearch else "is required for"
        raise ValueError(f"Beam search (`num_beams`) {without} {', '.join(sorted(unknown))}. Received: {settings}.")
    return kind(**settings)


def generate(source: Any, request: Request, show: Show | None = None) -> Generated:
    """Continue a prompt, and write the samples as JSON lines.

    For fields of the request that are None, the default of the source applies. Sample i has seed `request.seed` + i, so
    that each sample is reproducible separately. After an interruption (Ctrl-C, or another signal with
    `callbacks.InterruptOnSignal`), the samples so far are returned.

    Returns:
        `Generated`. Samples have "prompt", "text" (prompt and continuation, with U+FFFD for invalid UTF-8),
        "num_tokens" and "log_prob" (number and log-probability of the new tokens), "finished" (whether the document
        ended), "interrupted", "seed" and the settings. The text is empty for a single sample that `show` has printed.

    Raises:
        ValueError: If a setting is out of range, or `request.complete` is set.
        KeyboardInterrupt: If interrupted before the first token.
    """
    if request.complete is not None:
        raise ValueError(f"`complete` must be unset for text: it is for images. Received: {request.complete}.")
    path, count = output_path(request.path, SAMPLES), request.num_samples
    defaults = dict(source.defaults)
    default_prompt, default_length = defaults.pop("prompt"), defaults.pop("length")
    prompt = default_prompt.encode("utf-8") if request.prompt is None else request.prompt
    length = default_length if request.length is None else request.length
    settings = request.settings if "num_beams" in request.settings else defaults | request.settings
    checks.check_count("num_samples", count)
    if "num_beams" in settings and count > 1:
        raise ValueError(f"`num_samples` must be 1 for beam search. Received: {count}.")
    checks.check_count("length", length)

    def snapshots(numbers):
        return source.snapshots(prompt, [request.seed + number for number in numbers], length, settings)

    samples = draw(snapshots, count, lambda samples: write_samples(samples, path), show)
    is_shown = show is not None and len(samples) == count == 1
    return Generated(samples, "" if is_shown else as_text(samples), path)


def draw(
    snapshots: Callable[[range], Iterable[list[dict[str, Any]]]],
    num_samples: int,
    write: Callable[[list[dict[str, Any]]], None],
    show: Show | None = None,
) -> list[dict[str, Any]]:
    """Draw samples of any kind in batches. Write all samples so far after each batch and after Ctrl-C.

    `snapshots` is a function from a range of sample numbers to an iterator over these samples as they grow. All ranges
    have the same length; the last range can exceed `num_samples`. The result has the samples, each with "interrupted".

    Raises:
        KeyboardInterrupt: If interrupted before the first snapshot.
    """
    samples: list[dict[str, Any]] = []
    current: list[dict[str, Any]] = []
    size = min(BATCH_SIZE, num_samples)
    try:
        for begin in range(0, num_samples, size):
            # A smaller last batch would be compiled again. Surplus samples are dropped.
            for batch in snapshots(range(begin, begin + size)):
                current = [{**sample, "interrupted": False} for sample in batch[: num_samples - begin]]
                if show is not None:
                    show([*samples, *current])
            samples, current = samples + current, []
            write(samples)
    except KeyboardInterrupt:
        samples += [{**sample, "interrupted": True} for sample in current]
        if not samples:
            raise
        write(samples)
    return samples


def chat(
    source: Any,
    turns: Iterable[str],
    show: Callable[[str], None],
    length: int | None,
    seed: int,
    context_length: int,
    settings: dict[str, Any],
) -> None:
    """Answer the turns of a conversation; see `ChatSession`.

    `show` receives each piece of an answer, then a line break. `length` is the maximum number of tokens of an answer,
    and `context_length` of the conversation. `settings` are arguments of `Sampling` that replace defaults of the
    source.

    Raises:
        ValueError: if the source has no language model, a setting is out of range, or the conversation is too long.
    """
    if type(source) is not LocalModelSource or not isinstance(source.model, LanguageModel):
        raise ValueError(
            "`chat` must be False unless the model is a language model, from --workdir, --model or --preset. Received: "
            f"{type(source).__name__}."
        )
    defaults = {name: value for name, value in source.defaults.items() if name != "prompt"}
    default_length = defaults.pop("length")
    strategy = make_strategy(defaults | settings)
    session = source.model.chat_session(context_length, strategy, source.tokenizer, seed, (source.tokenizer.end_id,))
    for turn in turns:
        session.append(turn)
        for piece in session.generate(default_length if length is None else length, chunk_size=CHAT_CHUNK):
            show(printable(piece))
        show("\n")


def output_path(path: str | os.PathLike | None, name: str) -> pathlib.Path | None:
    """Return the output file: the path, or for a folder the file `name` in it. None: None."""
    if path is None:
        return None
    file = pathlib.Path(path) / name if pathlib.Path(path).is_dir() else pathlib.Path(path)
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ValueError(f"`output` must be a file in an existing folder. Received: {file}.")
    return file


def write_samples(samples: list[dict[str, Any]], path: str | os.PathLike | None) -> None:
    """Write samples as JSON lines, atomically. None: write no file."""
    if path is None:
        return
    with atomic_file(path) as temporary:
        lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples]
        temporary.write_text("".join(lines), encoding="utf-8")


def as_text(samples: list[dict[str, Any]]) -> str:
    """Format samples as text, with a heading per sample if there are several. Replace control characters."""
    if len(samples) == 1:
        return printable(samples[0]["text"])
    return "\n".join(f"=== seed {sample['seed']}\n{printable(sample['text'])}" for sample in samples)


def printable(text: str) -> str:
    """Replace control characters in a text by U+FFFD, except line breaks and tabs."""
    return "".join(
        "\ufffd" if unicodedata.category(character) == "Cc" and character not in "\n\t" else character
        for character in text
    )
