"""Step functions that connect a language model to the decoding loop."""

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_sparse_attention.layers.attention.attention_checks import num_cached_tokens
from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.types import Tensor

PAD_ID = 0


class Decoder(NamedTuple):
    """Functions of a model for `tf_sparse_attention.generation.generate`.

    Attributes:
        step: the argument `step`.
        start: function that returns the initial `state`; arguments as in `prefill_prompts`, without the model.
    """

    step: Callable
    start: Callable


def make_decoder(model: keras.Model) -> Decoder:
    """Create the `Decoder` of a model: with a KV cache, or if unsupported, with a full pass per token."""
    if model.cache_unsupported_reason is None:
        return Decoder(cached_step(model), functools.partial(prefill_prompts, model))
    logging.warning(
        "%s decodes without a cache because %s: every token needs a pass over the whole sequence.",
        model.name,
        model.cache_unsupported_reason,
    )
    return Decoder(full_pass_step(model), lambda prompt_ids, prompt_lengths, max_length, encoded=None: encoded or {})


def cached_step(model: keras.Model, first: int | Tensor = 0) -> Callable:
    """Create a step for `tf_sparse_attention.generation.generate` that processes one token per row.

    Args:
        model: `LanguageModel` that can decode with a cache.
        first: position of the first token of `inputs`, an integer or a scalar tensor. Default 0.

    Returns:
        Function (inputs, index, cache) -> (logits, cache).
    """

    def step(inputs, index, cache):
        position = index + first
        # Finished rows repeat their last position, which is already in the cache, so they decode no token.
        position = ops.where(position < num_cached_tokens(cache), -1, position)
        token_ids = ops.take_along_axis(inputs, index[:, None], axis=1)
        logits, cache = model.extend(token_ids, cache, index=position)
        return _with_lowest_padding(logits[:, 0]), cache

    return step


def prefill_prompts(
    model: keras.Model,
    prompt_ids: Tensor,
    prompt_lengths: Tensor,
    max_length: int | Tensor | None,
    encoded: dict[str, Tensor] | None = None,
    positions_in_cache: bool = False,
) -> dict[str, Any]:
    """Return the cache for all tokens of the prompts except the last one, which the first step processes.

    Args:
        model: `LanguageModel` that can decode with a cache.
        prompt_ids: int32 (B, P), padded on the right; costs a pass over P positions.
        prompt_lengths: int32 (B,), tokens of each prompt, at most P.
        max_length: maximum number of tokens in a row, an integer or a scalar tensor. None: unbounded, for a model with
            caches of constant size.
        encoded: with `cross_attention`: "encoder_sequence" and optionally "encoder_padding_mask".
        positions_in_cache: as in `Backbone.init_cache`. Default False.
    """
    batch_size, length = ops.shape(prompt_ids)
    inputs = ops.pad(ops.cast(prompt_ids, "int32"), [(0, 0), (1, 0)])[:, :-1]  # the start id is 0
    is_token = ops.arange(length, dtype="int32")[None, :] < prompt_lengths[:, None]
    cache = model.init_cache(batch_size, max_length, positions_in_cache=positions_in_cache, **(encoded or {}))
    return model.backbone.extend(ops.where(is_token, inputs, PAD_ID), cache, is_token, index=0)[1]


def full_pass_step(model: keras.Model) -> Callable:
    """Create a step for `tf_sparse_attention.generation.generate` that processes the whole buffer.

    Works for all causal patterns and for selection over the whole sequence (`selection="top_k"`), because positions
    after `index` are masked as padding. Id 0 is never a target in training, so its logit is set to the minimum.

    Args:
        model: `LanguageModel`.

    Returns:
        Function (inputs, index, state) -> (logits, state). The state is the dictionary of encoder outputs, or empty.
    """

    def step(inputs, index, state):
        batch_size, length = ops.shape(inputs)
        is_past = ops.arange(length, dtype="int32")[None, :] <= index[:, None]
        x = model.backbone({"token_ids": inputs, "padding_mask": is_past, **dict(state)}, training=False)
        rows = ops.arange(batch_size, dtype="int32") * length + index
        logits = model.logits(ops.take(ops.reshape(x, (-1, x.shape[-1])), rows, axis=0))  # (B, V)
        return _with_lowest_padding(logits), state

    return step


def limit_vocabulary(step: Callable, num_ids: int | None) -> Callable:
    """Create a step that sets the logits of ids >= `num_ids` to the minimum, such as ids that a tokenizer lacks."""

    def limited_step(inputs, index, state):
        logits, state = step(inputs, index, state)
        if num_ids is None or num_ids >= logits.shape[-1]:
            return logits, state
        return ops.where(ops.arange(logits.shape[-1]) < num_ids, logits, lowest(logits.dtype)), state

    return limited_step


def _with_lowest_padding(logits):
    """Set the logits (B, V) of the padding id to the minimum."""
    return ops.where(ops.arange(logits.shape[-1]) == PAD_ID, lowest(logits.dtype), logits)
