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
    """Functions of a model for generation.

    Attributes:
        step: the argument `step` of `tf_sparse_attention.generation.generate`.
        start: function (batch_size, max_length, encoded, **options) that returns the `state` of empty sequences.
        read: function (state, inputs, counts) that adds the first `counts` (B,) inputs of each row, int32 (B, T), to
            the state. None: the step reads all inputs itself.
    """

    step: Callable
    start: Callable
    read: Callable | None


def make_decoder(model: keras.Model) -> Decoder:
    """Create the `Decoder` of a model: with a KV cache, or if unsupported, with a full pass per token."""
    if model.cache_unsupported_reason is None:

        def start(batch_size, max_length, encoded=None, **options):
            return model.init_cache(batch_size, max_length, **(encoded or {}), **options)

        return Decoder(cached_step(model), start, functools.partial(read_inputs, model))
    logging.warning(
        "%s decodes without a cache because %s: every token needs a pass over the whole sequence.",
        model.name,
        model.cache_unsupported_reason,
    )
    return Decoder(full_pass_step(model), lambda batch_size, max_length, encoded=None: encoded or {}, None)


def read_inputs(
    model: keras.Model, cache: dict[str, Any], inputs: Tensor, counts: Tensor, index: int | None = None
) -> dict[str, Any]:
    """Return the cache after the first `counts` (B,) inputs of each row, int32 (B, T).

    `index` is the argument of `Backbone.extend`.
    """
    is_token = ops.arange(ops.shape(inputs)[1], dtype="int32")[None, :] < counts[:, None]
    return model.backbone.extend(ops.where(is_token, inputs, PAD_ID), cache, is_token, index)[1]


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


def read_prompts(
    decoder: Decoder,
    prompt_ids: Tensor,
    prompt_lengths: Tensor,
    max_length: int | Tensor,
    encoded: dict[str, Tensor] | None = None,
) -> Any:
    """Return the state after all tokens of the prompts except the last one, which the first step processes.

    Args:
        decoder: a `Decoder`.
        prompt_ids: int32 (B, P), padded on the right.
        prompt_lengths: int32 (B,), tokens of each prompt, at most P.
        max_length: maximum number of tokens in a row, an integer or a scalar tensor.
        encoded: with `cross_attention`: "encoder_sequence" and optionally "encoder_padding_mask".
    """
    state = decoder.start(ops.shape(prompt_ids)[0], max_length, encoded)
    if decoder.read is None:
        return state
    inputs = ops.pad(ops.cast(prompt_ids, "int32"), [(0, 0), (1, 0)])[:, :-1]  # the start id is 0
    return decoder.read(state, inputs, prompt_lengths, index=0)


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


class SpeculativeModel:
    """Adapter of a `LanguageModel` for `tf_sparse_attention.generation.speculate`.

    Args:
        model: `LanguageModel` that can decode with a cache.
        num_ids: see `limit_vocabulary`.
    """

    def __init__(self, model: keras.Model, num_ids: int | None) -> None:
        self._model, self._num_ids = model, num_ids

    def extend(self, inputs: Tensor, cache: dict[str, Any], mask: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return the logits (B, q, V) of the next tokens, and the cache with them."""
        logits, cache = self._model.extend(ops.where(mask, inputs, PAD_ID), cache, mask)
        ids = ops.arange(logits.shape[-1])
        allowed = ids != PAD_ID if self._num_ids is None else (ids != PAD_ID) & (ids < self._num_ids)
        return ops.where(allowed, logits, lowest(logits.dtype)), cache

    def rewind(self, cache: dict[str, Any], lengths: Tensor) -> dict[str, Any]:
        """Return the cache with the first `lengths` (B,) tokens of each row."""
        return self._model.rewind(cache, lengths)


def _with_lowest_padding(logits):
    """Set the logits (B, V) of the padding id to the minimum."""
    return ops.where(ops.arange(logits.shape[-1]) == PAD_ID, lowest(logits.dtype), logits)
