"""Generation from a language model by compiled programs, which are kept for calls to come."""

import functools
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.generation import (
    BeamSearch,
    advance,
    beam_search,
    begin,
    bucket_length,
    row_keys,
    strategy_of,
)
from tf_sparse_attention.models.programs import compiled
from tf_sparse_attention.models.prompts import checked_seeds, checked_stop_ids
from tf_sparse_attention.models.steps import decoder_of, of_first_ids

END_ID = 1


class Row(NamedTuple):
    """A prompt with its continuation.

    Attributes:
        token_ids: int32 array (T,), the stop id included if it came.
        log_probs: float32 array, one for each token that was added.
        finished: whether a stop id came.
    """

    token_ids: Any
    log_probs: Any
    finished: bool


class Task(NamedTuple):
    """Prompts and how they are to be continued.

    Attributes:
        strategy: settings, see `tf_sparse_attention.generation.strategy_of`.
        prompt_ids: int32 (B, P), prompts from the left.
        prompt_lengths: int32 (B,).
        max_length: int32 (), tokens at which a row stops.
        size: tokens that the buffer holds.
        keys: uint32 (B, 2).
        stop_ids: int32 (S,).
        num_ids: see `Generator.parts`.
    """

    strategy: Any
    prompt_ids: Any
    prompt_lengths: Any
    max_length: Any
    size: int
    keys: Any
    stop_ids: Any
    num_ids: int | None

    @property
    def kind(self):
        """What the program that adds tokens depends on."""
        return *self.strategy.kind, self.num_ids

    @property
    def given(self):
        """The prompts, and how long they may become."""
        return self.prompt_ids, self.prompt_lengths, self.max_length


class Generator:
    """Continues prompts of ids; what `LanguageModel.generate` and `stream` stand on.

    Prompts lie in a buffer of one of a few sizes (`bucket_length`), prompts with their continuation in another. A
    program is compiled for each of these sizes and that of the batch, and each kind of sampler; it serves all prompts,
    lengths, seeds and settings of that kind.

    Args:
        model: a causal `LanguageModel`.
        run_eagerly: whether to compile nothing, which is slow, for tests and to look inside. Default False.
    """

    def __init__(self, model, run_eagerly=False):
        if not model.backbone.causal:
            raise ValueError(
                "`model` must be causal to continue a text; one that sees later tokens guesses hidden ones. "
                "Received: a model with causal=False."
            )
        self.model = model
        self.run_eagerly = run_eagerly
        self.decoder = decoder_of(model)
        self._programs, self._weights = {}, ()

    def generate(self, prompts, max_length, sampler="random", seed=0, stop_ids=(END_ID,), num_ids=None):
        """Returns a list of `Row`, one for each prompt; the arguments are those of `parts`."""
        *_, rows = self.parts(prompts, max_length, sampler, seed, stop_ids, num_ids)
        return rows

    def parts(self, prompts, max_length, sampler="random", seed=0, stop_ids=(END_ID,), num_ids=None, chunk_size=None):
        """Returns an iterator over all rows as they are, lists of `Row`: the prompts, then after every few tokens.

        Args:
            prompts: list of integer arrays (T,) of ids of the vocabulary, without the start id.
            max_length: tokens of a row, prompt included, at which it stops.
            sampler: see `LanguageModel.generate`; likewise `seed` and `stop_ids`.
            num_ids: draw from the first so many ids alone, those of the tokenizer. None (default): all.
            chunk_size: tokens from one list to the next, an integer, or None (default) for the rows at the end alone.

        Raises:
            ValueError: for a wrong argument, and for parts of a beam search, which has none.
        """
        stop_ids = checked_stop_ids(stop_ids, self.model.backbone.vocabulary_size)
        keys = ops.convert_to_numpy(row_keys(checked_seeds(seed, len(prompts)), len(prompts)))
        self._check_length(prompts, max_length)
        task = self._task(prompts, max_length, strategy_of(sampler), keys, stop_ids, num_ids)
        if not isinstance(task.strategy, BeamSearch):
            return self._grown(task, chunk_size)
        if chunk_size is not None:
            raise ValueError("`sampler` must not be a beam search here: its text is known at the end alone.")
        return iter([self._best_beams(task)])

    def _task(self, prompts, max_length, strategy, keys, stop_ids, num_ids):
        size = self._buffer_length(max_length)
        starts = np.array([len(prompt) for prompt in prompts], "int32")
        prompt_ids = _filled(prompts, min(bucket_length(max(starts)), size))
        return Task(strategy, prompt_ids, starts, np.array(max_length, "int32"), size, keys, stop_ids, num_ids)

    def _grown(self, task, chunk_size):
        progress = self._program(("begin", task.size), lambda: functools.partial(self._begin, task.size))(*task.given)
        step = of_first_ids(self.decoder.step, task.num_ids)
        advance_by = self._program(task.kind, lambda: functools.partial(_advance, step, task.strategy))
        amount = np.array(task.size if chunk_size is None else chunk_size, "int32")
        done = False
        while not done:
            if chunk_size is not None:
                yield _rows(progress.token_ids, progress.lengths, progress.log_probs, task)
            progress = advance_by(progress, task.keys, task.stop_ids, amount, task.strategy.values)
            done = bool(ops.convert_to_numpy(progress.finished).all())
        yield _rows(progress.token_ids, progress.lengths, progress.log_probs, task)

    def _begin(self, size, prompt_ids, prompt_lengths, max_length):
        state = self.decoder.start(prompt_ids, prompt_lengths, size)
        return begin(_lengthened(prompt_ids, size), prompt_lengths, max_length, state=state)

    def _best_beams(self, task):
        size, strategy, step = task.size, task.strategy, of_first_ids(self.decoder.step, task.num_ids)

        def search(prompt_ids, prompt_lengths, max_length, stop_ids, values):
            return beam_search(
                step,
                _lengthened(prompt_ids, size),
                prompt_lengths,
                max_length,
                strategy.num_beams,
                values["length_penalty"],
                stop_ids,
                state=self.decoder.start(prompt_ids, prompt_lengths, size),
                adjust=strategy.adjust(values),
            )

        beams = self._program((*task.kind, size), lambda: search)(*task.given, task.stop_ids, strategy.values)
        return _rows(*(x[:, 0] for x in (beams.inputs[:, :, 1:], beams.lengths, beams.log_probs)), task)

    def _program(self, kind, make):
        """Returns the program of a kind, for the windows that layers with an adaptive span compute now."""
        weights = tuple(map(id, self.model.variables))
        if weights != self._weights:  # others than those of the programs, as after `enable_lora` and `quantize`
            self._programs, self._weights = {}, weights
        kind = (*kind, *self.model.computed_windows)
        if kind not in self._programs:
            self._programs[kind] = make() if self.run_eagerly else compiled(make(), self.model)
        return self._programs[kind]

    def _check_length(self, prompts, max_length):
        checks.check_count("max_length", max_length)
        if len(prompts) == 0:
            raise ValueError("`prompts` must hold at least one prompt. Received: none.")
        longest = max(map(len, prompts))
        if longest > max_length:
            raise ValueError(
                "`max_length` must be at least the tokens of each prompt. "
                f"Received: max_length={max_length}, a prompt of {longest} tokens."
            )

    def _buffer_length(self, max_length):
        most = self.model.backbone.max_length
        if most is not None and max_length > most:
            raise ValueError(
                f"`max_length` must be at most the {most} positions of the model. Received: max_length={max_length}."
            )
        length = bucket_length(max_length)
        return length if most is None else min(length, most)


def _filled(prompts, size):
    """Returns prompts from the left, int32 (B, P), with 0 behind them."""
    buffer = np.zeros((len(prompts), size), "int32")
    for row, prompt in zip(buffer, prompts, strict=True):
        row[: len(prompt)] = prompt
    return buffer


def _lengthened(prompt_ids, size):
    return ops.pad(prompt_ids, [(0, 0), (0, size - prompt_ids.shape[1])])


def _advance(step, strategy, progress, keys, stop_ids, num_tokens, values):
    return advance(progress, step, strategy.sampler(values), keys, stop_ids, num_tokens, strategy.adjust(values))


def _rows(token_ids, lengths, log_probs, task):
    token_ids, lengths, log_probs = keras.tree.map_structure(ops.convert_to_numpy, (token_ids, lengths, log_probs))
    return [
        Row(ids[:end], own[start:end], bool(end > start and ids[end - 1] in task.stop_ids))
        for ids, own, start, end in zip(token_ids, log_probs, task.prompt_lengths, lengths, strict=True)
    ]
