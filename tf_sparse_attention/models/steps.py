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
    """The functions of a model for `tf_sparse_attention.generation.generate`.

    Attributes:
        step: the argument of that name.
        start: function of prompts, int32 (B, P), their lengths, int32 (B,), the most tokens that a row can have, and
            what is encoded, see `prefill_prompts`, to the `state` to begin with.
    """

    step: Callable
    start: Callable


def make_decoder(model: keras.Model) -> Decoder:
    """Returns the `Decoder` of a model: with a cache, or if it supports none, by a full pass for each token."""
    if model.cache_unsupported_reason is None:
        return Decoder(cached_step(model), functools.partial(prefill_prompts, model))
    logging.warning(
        "%s decodes without a cache, since %s: every token costs a pass over the whole sequence.",
        model.name,
        model.cache_unsupported_reason,
    )
    return Decoder(full_pass_step(model), lambda prompt_ids, prompt_lengths, max_length, encoded=None: encoded or {})


def cached_step(model: keras.Model, first: int | Tensor = 0) -> Callable:
    """Returns a step for `tf_sparse_attention.generation.generate` that runs the model over one token a row.

    Args:
        model: `LanguageModel` that can decode with a cache.
        first: the position of the first of `inputs`, an integer or a scalar tensor. Default 0.

    Returns:
        Function (inputs, index, cache) -> (logits, cache).
    """

    def step(inputs, index, cache):
        position = index + first
        # Finished rows repeat their last position, which the cache holds already: they decode no token.
        position = ops.where(position < num_cached_tokens(cache), -1, position)
        logits, cache = model.decode(ops.take_along_axis(inputs, index[:, None], axis=1), cache, position)
        return _with_lowest_padding(logits[:, 0]), cache

    return step


def prefill_prompts(
    model: keras.Model,
    prompt_ids: Tensor,
    prompt_lengths: Tensor,
    max_length: int | Tensor | None,
    encoded: dict[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Returns the cache after all tokens of the prompts but the last one, which the first step reads.

    Args:
        model: `LanguageModel` that can decode with a cache.
        prompt_ids: int32 (B, P), prompts from the left; costs a pass over P positions.
        prompt_lengths: int32 (B,), tokens of each prompt, at most P.
        max_length: the most tokens that a row can have, an integer or a scalar tensor. None: any number, of a model
            whose caches do not grow.
        encoded: of a model with `cross_attention` "encoder_sequence" and, if wanted, "encoder_padding_mask".
    """
    encoded = encoded or {}
    batch_size, length = ops.shape(prompt_ids)
    inputs = ops.pad(ops.cast(prompt_ids, "int32"), [(0, 0), (1, 0)])[:, :-1]  # the start id is 0
    is_token = ops.arange(length, dtype="int32")[None, :] < prompt_lengths[:, None]
    cache = model.init_cache(batch_size, max_length, **encoded)
    return model.backbone.prefill({"token_ids": ops.where(is_token, inputs, PAD_ID), **encoded}, cache, is_token)[1]


def full_pass_step(model: keras.Model) -> Callable:
    """Returns a step for `tf_sparse_attention.generation.generate` that runs the model over the whole buffer.

    For every causal pattern, and for selections over the whole sequence (`selection="top_k"`): positions after `index`
    are masked as padding. Id 0 is never a target in training, so its logit is meaningless and is set to the minimum.

    Args:
        model: `LanguageModel`.

    Returns:
        Function (inputs, index, state) -> (logits, state), its state what is encoded, a dictionary, or empty.
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
    """Returns a step that samples only ids below `num_ids`, those of a tokenizer: other logits are the minimum."""

    def limited_step(inputs, index, state):
        logits, state = step(inputs, index, state)
        if num_ids is None or num_ids >= logits.shape[-1]:
            return logits, state
        return ops.where(ops.arange(logits.shape[-1]) < num_ids, logits, lowest(logits.dtype)), state

    return limited_step


def _with_lowest_padding(logits):
    """Returns logits (B, V) with the minimum for padding."""
    return ops.where(ops.arange(logits.shape[-1]) == PAD_ID, lowest(logits.dtype), logits)
