"""Generation from a language model with cached compiled programs."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.generation import (
    BeamSearch,
    DecodingConfig,
    advance,
    beam_search,
    begin,
    bucket_length,
    get_strategy,
    row_keys,
)
from tf_sparse_attention.models.programs import Programs
from tf_sparse_attention.models.prompts import check_seeds, check_stop_token_ids
from tf_sparse_attention.models.steps import limit_vocabulary, make_decoder
from tf_sparse_attention.models.unbounded import stream_unbounded
from tf_sparse_attention.types import Tensor

END_ID = 1


class Row(NamedTuple):
    """Prompt and continuation.

    Attributes:
        token_ids: int32 array (T,), including the stop id, if any.
        log_probs: float32 array, one per new token.
        finished: whether the row ends with a stop id.
    """

    token_ids: Tensor
    log_probs: Tensor
    finished: bool


class Task(NamedTuple):
    """Prompts and settings of one call.

    Attributes:
        strategy: result of `tf_sparse_attention.generation.get_strategy`.
        prompt_ids: int32 (B, P), padded on the right.
        prompt_lengths: int32 (B,).
        max_length: int32 (), maximum number of tokens in a row.
        size: size of the buffer in tokens.
        keys: uint32 (B, 2), random keys.
        stop_token_ids: int32 (S,).
        num_ids: see `Generator.iterate`.
        encoded: see `Generator.iterate`.
    """

    strategy: Any
    prompt_ids: Tensor
    prompt_lengths: Tensor
    max_length: Tensor
    size: int
    keys: Tensor
    stop_token_ids: Tensor
    num_ids: int | None
    encoded: dict[str, Tensor]

    @property
    def kind(self) -> tuple:
        """Key of the compiled program."""
        return *self.strategy.kind, self.num_ids

    @property
    def prompts(self) -> tuple:
        """Prompts, prompt lengths, maximum length and encoder outputs."""
        return self.prompt_ids, self.prompt_lengths, self.max_length, self.encoded


class Generator:
    """Generation from prompts of ids, for `LanguageModel.generate` and `stream`.

    Prompts and results are padded to a few sizes, see `tsa.generation.bucket_length`. One program is compiled per batch
    size, pair of sizes and kind of strategy, and is reused for other prompts and settings.

    Args:
        model: a causal `LanguageModel`.
        run_eagerly: whether to run without compilation, slowly, for tests and debugging. Default False.
    """

    def __init__(self, model: keras.Model, run_eagerly: bool = False) -> None:
        if not model.backbone.causal:
            raise ValueError("`model` must be causal to generate text. Received: a model with causal=False.")
        self.model = model
        self.decoder = make_decoder(model)
        self._programs = Programs(model, run_eagerly)

    def generate(
        self,
        prompts: Sequence[Tensor],
        max_length: int,
        strategy: str | DecodingConfig | Callable = "random",
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        num_ids: int | None = None,
        encoded: dict[str, Tensor] | None = None,
    ) -> list[Row]:
        """Return the final rows, one per prompt; see `iterate`."""
        *_, rows = self.iterate(prompts, max_length, strategy, seed, stop_token_ids, num_ids, encoded=encoded)
        return rows

    def iterate(
        self,
        prompts: Sequence[Tensor],
        max_length: int,
        strategy: str | DecodingConfig | Callable = "random",
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        num_ids: int | None = None,
        chunk_size: int | None = None,
        encoded: dict[str, Tensor] | None = None,
    ) -> Iterator[list[Row]]:
        """Iterate over lists of rows as they grow: the prompts first, then every `chunk_size` tokens.

        A row has `token_ids`, int32 (T,); `log_probs`, float32, one per new token; and `finished`, whether the row ends
        with a stop id.

        Args:
            prompts: list of integer arrays (T,) of ids of the vocabulary, without the start id.
            max_length: maximum number of tokens in a row, including the prompt.
            strategy, seed, stop_token_ids: see `LanguageModel.generate`.
            num_ids: number of ids to sample from, such as the vocabulary size of a tokenizer. Default None: all.
            chunk_size: tokens between two lists, an integer. Default None: only the final rows.
            encoded: with `cross_attention`: "encoder_sequence", float (B, S, D), one row per prompt, and optionally
                "encoder_padding_mask", bool (B, S). Default None, for other models.

        Raises:
            ValueError: if an argument is invalid, or `chunk_size` is given for beam search.
        """
        stop_token_ids = check_stop_token_ids(stop_token_ids, self.model.backbone.vocabulary_size)
        keys = ops.convert_to_numpy(row_keys(check_seeds(seed, len(prompts)), len(prompts)))
        self._check_length(prompts, max_length)
        task = self._task(prompts, max_length, get_strategy(strategy), keys, stop_token_ids, num_ids, encoded or {})
        if not isinstance(task.strategy, BeamSearch):
            return self._generate_rows(task, chunk_size)
        if chunk_size is not None:
            raise ValueError("`strategy` must not be a beam search with `chunk_size`. Received: a beam search.")
        return iter([self._best_beams(task)])

    def stream_unbounded(
        self,
        prompt: Tensor,
        strategy: str | DecodingConfig | Callable = "random",
        seed: int | Sequence[int] | Tensor = 0,
        stop_token_ids: int | Sequence[int] | Tensor | None = (END_ID,),
        chunk_size: int = 1,
        positions_in_cache: bool = False,
    ) -> Iterator[np.ndarray]:
        """Iterate over the prompt, unless it is empty, and then chunks of ids, int32 (n,), until a stop id.

        Args:
            prompt: int (T,), without the start id.
            strategy, seed, stop_token_ids, chunk_size, positions_in_cache: see `LanguageModel.stream`.
        """
        settings = strategy, seed, stop_token_ids, chunk_size, positions_in_cache
        return stream_unbounded(self.model, self._programs, prompt, *settings)

    def _task(self, prompts, max_length, strategy, keys, stop_token_ids, num_ids, encoded):
        if num_ids is not None and num_ids >= self.model.backbone.vocabulary_size:
            num_ids = None  # use the program for all ids
        size = self._buffer_length(max_length)
        starts = np.array([len(prompt) for prompt in prompts], "int32")
        prompt_ids = pad_prompts(prompts, min(bucket_length(max(starts)), size))
        limit = np.array(max_length, "int32")
        return Task(strategy, prompt_ids, starts, limit, size, keys, stop_token_ids, num_ids, encoded)

    def _generate_rows(self, task, chunk_size):
        progress = self._programs.get(("begin", task.size), lambda: functools.partial(self._begin, task.size))(
            *task.prompts
        )
        step = limit_vocabulary(self.decoder.step, task.num_ids)
        advance_by = self._programs.get(task.kind, lambda: functools.partial(_advance, step, task.strategy))
        amount = np.array(task.size if chunk_size is None else chunk_size, "int32")
        done = False
        while not done:
            if chunk_size is not None:
                yield _rows(progress.token_ids, progress.lengths, progress.log_probs, task)
            progress = advance_by(progress, task.keys, task.stop_token_ids, amount, task.strategy.values)
            done = bool(ops.convert_to_numpy(progress.finished).all())
        yield _rows(progress.token_ids, progress.lengths, progress.log_probs, task)

    def _begin(self, size, prompt_ids, prompt_lengths, max_length, encoded):
        state = self.decoder.start(prompt_ids, prompt_lengths, size, encoded)
        return begin(_extend(prompt_ids, size), prompt_lengths, max_length, state=state)

    def _best_beams(self, task):
        size, strategy, step = task.size, task.strategy, limit_vocabulary(self.decoder.step, task.num_ids)

        def search(prompt_ids, prompt_lengths, max_length, encoded, stop_token_ids, values):
            return beam_search(
                step,
                _extend(prompt_ids, size),
                prompt_lengths,
                max_length,
                strategy.num_beams,
                values["length_penalty"],
                stop_token_ids,
                state=self.decoder.start(prompt_ids, prompt_lengths, size, encoded),
                adjust=strategy.adjust(values),
            )

        beams = self._programs.get((*task.kind, size), lambda: search)(
            *task.prompts, task.stop_token_ids, strategy.values
        )
        return _rows(beams.inputs[:, 0, 1:], beams.lengths[:, 0], beams.log_probs[:, 0], task)

    def _check_length(self, prompts, max_length):
        checks.check_count("max_length", max_length)
        if len(prompts) == 0:
            raise ValueError("`prompts` must have at least one prompt. Received: an empty list.")
        longest = max(map(len, prompts))
        if longest > max_length:
            raise ValueError(
                "`max_length` must be at least the number of tokens of each prompt. "
                f"Received: max_length={max_length}, a prompt of {longest} tokens."
            )

    def _buffer_length(self, max_length):
        limit = self.model.backbone.max_length
        if limit is not None and max_length > limit:
            raise ValueError(
                f"`max_length` must be at most the {limit} positions of the model. Received: max_length={max_length}."
            )
        length = bucket_length(max_length)
        return length if limit is None else min(length, limit)


def pad_prompts(prompts: Sequence[Tensor], size: int) -> np.ndarray:
    """Pad prompts with 0 on the right, int32 (B, P)."""
    buffer = np.zeros((len(prompts), size), "int32")
    for row, prompt in zip(buffer, prompts, strict=True):
        row[: len(prompt)] = prompt
    return buffer


def _extend(prompt_ids, size):
    return ops.pad(prompt_ids, [(0, 0), (0, size - prompt_ids.shape[1])])


def _advance(step, strategy, progress, keys, stop_token_ids, num_tokens, values):
    return advance(progress, step, strategy.sampler(values), keys, stop_token_ids, num_tokens, strategy.adjust(values))


def _rows(token_ids, lengths, log_probs, task):
    token_ids, lengths, log_probs = keras.tree.map_structure(ops.convert_to_numpy, (token_ids, lengths, log_probs))
    return [
        Row(ids[:end], row_log_probs[start:end], bool(end > start and ids[end - 1] in task.stop_token_ids))
        for ids, row_log_probs, start, end in zip(token_ids, log_probs, task.prompt_lengths, lengths, strict=True)
    ]
