"""Unbounded generation from one prompt in chunks, with constant memory."""

import functools
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.generation import (
    BeamSearch,
    DecodingConfig,
    advance,
    begin,
    bucket_length,
    get_strategy,
    row_keys,
)
from tf_sparse_attention.layers.attention.attention_layer import check_has_cache
from tf_sparse_attention.models.programs import Programs
from tf_sparse_attention.models.prompts import check_seeds, check_stop_token_ids
from tf_sparse_attention.models.steps import cached_step, prefill_prompts
from tf_sparse_attention.types import Tensor


def stream_unbounded(
    model: keras.Model,
    programs: Programs,
    prompt: Tensor,
    strategy: str | DecodingConfig | Callable,
    seed: int | Sequence[int] | Tensor,
    stop_token_ids: int | Sequence[int] | Tensor | None,
    chunk_size: int,
    positions_in_cache: bool,
) -> Iterator[np.ndarray]:
    """Return an iterator over the prompt, unless it is empty, and then each chunk, int32 (n,).

    Args:
        model: a causal `LanguageModel` with caches of constant size.
        programs: compiled programs of the model.
        prompt: int (T,), without the start id.
        strategy, seed, stop_token_ids: as for `LanguageModel.generate`, with the same results.
        chunk_size: tokens per chunk.
        positions_in_cache: see `LanguageModel.stream`.

    Raises:
        ValueError: if the caches grow with the sequence, or `strategy` depends on the whole sequence.
    """
    check_has_cache(model)
    # Raises an error here, before the first chunk, if the cache grows.
    model.init_cache(1, None, positions_in_cache=positions_in_cache)
    stops = check_stop_token_ids(stop_token_ids, model.vocabulary_size)
    chosen = get_strategy(strategy)
    if isinstance(chosen, BeamSearch) or chosen.adjust(chosen.values) is not None:
        raise ValueError(
            "`strategy` must not be a beam search or have `repetition_penalty` or `no_repeat_ngram` if `max_length` "
            f"is None. Received: strategy={strategy!r}."
        )
    keys = ops.convert_to_numpy(row_keys(check_seeds(seed, 1), 1))
    fill = functools.partial(prefill_prompts, model, max_length=None, positions_in_cache=positions_in_cache)
    start = programs.get(("unbounded_start", positions_in_cache), lambda: fill)
    add = programs.get(
        ("unbounded", chunk_size, *chosen.kind), lambda: functools.partial(_add, model, chosen, chunk_size)
    )
    return _chunks(start, add, np.asarray(prompt, "int32"), keys, stops, chosen.values)


def _chunks(start, add, prompt, keys, stop_token_ids, values):
    padded = np.zeros((1, bucket_length(len(prompt))), "int32")
    padded[0, : len(prompt)] = prompt
    cache, position = start(padded, np.array([len(prompt)], "int32")), len(prompt)
    last = prompt[-1] if len(prompt) else 0  # the start id
    if len(prompt):
        yield prompt
    while True:
        arguments = np.array(last, "int32"), np.array(position, "int32"), keys, stop_token_ids, values
        token_ids, length, cache = add(cache, *arguments)
        new = ops.convert_to_numpy(token_ids)[: int(ops.convert_to_numpy(length))]
        yield new
        position, last = position + len(new), new[-1]
        if last in stop_token_ids:
            return


def _add(model, strategy, chunk_size, cache, last, position, keys, stop_token_ids, values):
    """Return the ids of a chunk after the token `last`, int32 (C,), their number, and the cache."""
    step = cached_step(model, position)
    nothing = ops.zeros((1, chunk_size), "int32")
    progress = begin(nothing, ops.zeros((1,), "int32"), chunk_size, state=cache)
    progress = progress._replace(inputs=ops.concatenate([ops.reshape(last, (1, 1)), nothing], axis=1))
    progress = advance(progress, step, strategy.sampler(values), keys, stop_token_ids, first=position)
    return progress.token_ids[0], progress.lengths[0], progress.state
