"""Generation from a language model with cached compiled programs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.generation import (
    BeamSearch,
    Progress,
    Speculative,
    SpeculativeState,
    advance,
    beam_search,
    bucket_length,
    get_strategy,
    row_keys,
    speculate,
)
from tf_sparse_attention.generation.strategies import Strategy
from tf_sparse_attention.layers.attention.attention_layer import check_has_cache
from tf_sparse_attention.models.programs import Programs
from tf_sparse_attention.models.prompts import check_seeds, check_stop_token_ids
from tf_sparse_attention.models.steps import SpeculativeModel, limit_vocabulary, make_decoder
from tf_sparse_attention.types import Tensor

END_ID = 1
READ_SIZES = 64, 512  # tokens per call of the program that reads prompts


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
        inputs: int32 (B, L + 1), the start id and the tokens of the prompts, padded on the right.
        prompt_lengths: int32 (B,).
        max_length: int32 (), maximum number of tokens in a row.
        size: L, size of the buffer in tokens.
        keys: uint32 (B, 2), random keys.
        stop_token_ids: int32 (S,).
        num_ids: see `Generator.iterate`.
        encoded: see `Generator.iterate`.
    """

    strategy: Any
    inputs: np.ndarray
    prompt_lengths: np.ndarray
    max_length: np.ndarray
    size: int
    keys: np.ndarray
    stop_token_ids: np.ndarray
    num_ids: int | None = None
    encoded: dict[str, Tensor] | None = None

    @property
    def kind(self) -> tuple:
        """Key of the compiled program."""
        return *self.strategy.kind, self.num_ids


class Generator:
    """Generation from prompts of ids, for `LanguageModel.generate` and `stream`.

    Buffers and caches have one of a few sizes; see `tsa.generation.bucket_length`. Prompts are read in chunks of two
    sizes. Per batch size and buffer size, two programs read prompts of any length. One program per kind of strategy
    generates.

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
        strategy: Strategy = "random",
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
        strategy: Strategy = "random",
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
        if isinstance(task.strategy, Speculative):
            self._check_draft(task.strategy, task.size, encoded)
        if not isinstance(task.strategy, BeamSearch):
            return self._generate_rows(task, chunk_size)
        if chunk_size is not None:
            raise ValueError("`strategy` must not be a beam search with `chunk_size`. Received: a beam search.")
        return iter([self._best_beams(task)])

    def start(self, batch_size: int, size: int | None, encoded: dict[str, Tensor] | None = None, **options: Any) -> Any:
        """Return the state of empty sequences of at most `size` tokens; options as in `Backbone.init_cache`."""
        if not encoded:
            return self.decoder.start(batch_size, size, **options)

        def start(encoded):
            return self.decoder.start(batch_size, size, encoded, **options)

        return self._programs.get(("start", batch_size, size, *sorted(options.items())), start)(encoded)

    def read(self, state: Any, inputs: np.ndarray, counts: np.ndarray) -> Any:
        """Return the state after the first `counts` (B,) inputs of each row, int32 (B, T).

        Inputs are read in chunks of two sizes, so two programs are enough for any length.
        """
        if self.decoder.read is None:
            return state
        program, start = self._programs.get(("read",), self.decoder.read), 0
        while start < counts.max():
            size = READ_SIZES[int(counts.max() - start > READ_SIZES[1] // 2)]
            piece = np.zeros((len(inputs), size), "int32")
            given = inputs[:, start : start + size]
            piece[:, : given.shape[1]] = given
            state = program(state, piece, np.clip(counts - start, 0, size).astype("int32"))
            start += size
        return state

    def program(self, kind: tuple, function: Callable) -> Callable:
        """Return the program of the model with the key `kind`, compiled from `function`; see `Programs.get`."""
        return self._programs.get(kind, function)

    def compile_stats(self) -> dict[str, int]:
        """Return the number of compiled programs by name; see `LanguageModel.compile_stats`."""
        return dict(self._programs.counts)

    def _task(self, prompts, max_length, strategy, keys, stop_token_ids, num_ids, encoded):
        if num_ids is not None and num_ids >= self.model.backbone.vocabulary_size:
            num_ids = None  # use the program for all ids
        size = self.buffer_length(max_length)
        starts = np.array([len(prompt) for prompt in prompts], "int32")
        inputs = pad_prompts([[0, *prompt] for prompt in prompts], size + 1)  # the start id is 0
        limit = np.array(max_length, "int32")
        return Task(strategy, inputs, starts, limit, size, keys, stop_token_ids, num_ids, encoded)

    def _generate_rows(self, task, chunk_size):
        progress = self._begin(task)
        amount = np.array(task.size if chunk_size is None else chunk_size, "int32")
        done = False
        while not done:
            if chunk_size is not None:
                yield _rows(progress.token_ids, progress.lengths, progress.log_probs, task)
            progress = self.advance(progress, task, amount)
            done = bool(ops.convert_to_numpy(progress.finished).all())
        yield _rows(progress.token_ids, progress.lengths, progress.log_probs, task)

    def _begin(self, task):
        """Return the `Progress` after the prompts. The first step processes their last tokens."""
        if not isinstance(task.strategy, Speculative):
            state = self.read(self._start(task), task.inputs, task.prompt_lengths)
            return make_progress(task.inputs, task.prompt_lengths, task.max_length, state)
        generators, rewind = (self, task.strategy.draft.generator), task.strategy.num_draft_tokens + 1
        caches = [
            each.read(each.start(len(task.inputs), task.size, rewind=rewind), task.inputs, task.prompt_lengths)
            for each in generators
        ]
        state = SpeculativeState(*caches, *map(ops.convert_to_tensor, (task.prompt_lengths, 0 * task.prompt_lengths)))
        return make_progress(task.inputs, task.prompt_lengths, task.max_length, state)

    def _start(self, task):
        return self.start(len(task.inputs), task.size, task.encoded)

    def _check_draft(self, strategy, size, encoded):
        """Raise a `ValueError` unless the model and the draft model of a `Speculative` match."""
        check_has_cache(self.model)
        check_has_cache(strategy.draft)
        own, other = self.model.vocabulary_size, strategy.draft.vocabulary_size
        if own != other or encoded:
            received = "a model with cross-attention" if encoded else f"vocabularies of {own} and {other} ids"
            raise ValueError(
                "`draft` must have as many token ids as the model, and the model must have no cross-attention. "
                f"Received: {received}."
            )
        strategy.draft.backbone.check_max_length(size)

    def advance(self, progress: Progress, task: Task, amount: Tensor) -> Progress:
        """Generate up to `amount` tokens, int32 (), per row; speculative decoding may add a few more."""
        strategy = task.strategy
        if isinstance(strategy, Speculative):
            target, draft = (SpeculativeModel(model, task.num_ids) for model in (self.model, strategy.draft))

            def add(progress, keys, stop_token_ids, num_tokens, values):
                sampling: Any = strategy.strategy  # a `Sampling`
                count = strategy.num_draft_tokens
                return speculate(progress, target, draft, sampling, values, count, keys, stop_token_ids, num_tokens)

            program = self._programs.get(("speculate", *task.kind), add, [strategy.draft])
        else:
            step = limit_vocabulary(self.decoder.step, task.num_ids)

            def add(progress, keys, stop_token_ids, num_tokens, values):
                sampler, adjust = strategy.sampler(values), strategy.adjust(values)
                return advance(progress, step, sampler, keys, stop_token_ids, num_tokens, adjust)

            program = self._programs.get(("advance", *task.kind), add)
        return program(progress, task.keys, task.stop_token_ids, amount, task.strategy.values)

    def _best_beams(self, task):
        strategy, step = task.strategy, limit_vocabulary(self.decoder.step, task.num_ids)

        def search(state, inputs, prompt_lengths, max_length, stop_token_ids, values):
            return beam_search(
                step,
                inputs[:, 1:],
                prompt_lengths,
                max_length,
                strategy.num_beams,
                values["length_penalty"],
                stop_token_ids,
                state=state,
                adjust=strategy.adjust(values),
            )

        state = self.read(self._start(task), task.inputs, task.prompt_lengths)
        given = task.inputs, task.prompt_lengths, task.max_length, task.stop_token_ids, strategy.values
        beams = self._programs.get(("search", *task.kind), search)(state, *given)
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

    def buffer_length(self, max_length: int) -> int:
        """Return the number of tokens of the buffer and the cache for sequences of at most `max_length` tokens."""
        self.model.backbone.check_max_length(max_length)
        limit, length = self.model.backbone.max_length, bucket_length(max_length)
        return length if limit is None else min(length, limit)


def pad_prompts(prompts: Sequence[Tensor], size: int) -> np.ndarray:
    """Pad prompts with 0 on the right, int32 (B, P)."""
    buffer = np.zeros((len(prompts), size), "int32")
    for row, prompt in zip(buffer, prompts, strict=True):
        row[: len(prompt)] = prompt
    return buffer


def make_progress(inputs: np.ndarray, lengths: np.ndarray, max_length: Tensor, state: Any) -> Progress:
    """Create a `Progress` with NumPy: JAX would compile each backend operation per shape.

    Args:
        inputs: int32 (B, L + 1), the start id and the tokens so far.
        lengths: int32 (B,), number of tokens per row.
        max_length: maximum number of tokens in a row.
        state: state of the step.
    """
    limits = np.broadcast_to(np.asarray(max_length, "int32"), lengths.shape)
    arrays = inputs, np.zeros((len(inputs), inputs.shape[1] - 1), "float32"), lengths, lengths >= limits, limits
    inputs, log_probs, lengths, finished, limits = map(ops.convert_to_tensor, arrays)
    return Progress(inputs, log_probs, lengths, finished, limits, state)


def _rows(token_ids, lengths, log_probs, task):
    token_ids, lengths, log_probs = keras.tree.map_structure(ops.convert_to_numpy, (token_ids, lengths, log_probs))
    return [
        Row(ids[:end], row_log_probs[start:end], bool(end > start and ids[end - 1] in task.stop_token_ids))
        for ids, row_log_probs, start, end in zip(token_ids, log_probs, task.prompt_lengths, lengths, strict=True)
    ]
