"""Decoding with a cache, as all attention layers have it."""

from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.cache_checks import (
    NUM_TOKENS,
    check_cache,
    check_index,
    check_prompt_start,
    check_space,
    next_positions,
)
from tf_sparse_attention.layers.attention.cross_attention_cache import CrossAttentionCache, describe_keys
from tf_sparse_attention.layers.attention.endless_cache import (
    check_prompt,
    is_unturned,
    length_of_cache,
    mark_unturned,
    position_in_cache,
)
from tf_sparse_attention.layers.attention.groupers import groups_of_leaves
from tf_sparse_attention.layers.parts.integers import values_of
from tf_sparse_attention.layers.parts.masks import token_masks, zero_padding
from tf_sparse_attention.layers.parts.segment_memory import keys_of_memory, with_cached_memory
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.patterns.engine.decoding import decode_pattern
from tf_sparse_attention.patterns.engine.slots import Cache, empty_cache, fill_cache, fill_memory
from tf_sparse_attention.patterns.pattern import check_length
from tf_sparse_attention.types import Size, Tensor

# Queries, keys (None where queries serve as keys) and values, heads first; and what else a layer projects.
ProjectedHeads: TypeAlias = tuple[Any, ...]


class AttentionCache(CrossAttentionCache):
    """The three methods of decoding of an attention layer: what `AttentionLayer` adds to those of Keras.

    A cache is a dictionary of tensors whose shapes do not change, as a `while_loop` wants it. It holds the keys and
    values that later queries can still see and no others, by the cache policy of the pattern, and "num_tokens", int32
    (B,), the tokens of each row so far. Decoding is causal; its results are those of a causal call for the whole
    sequence, without dropout.

    `prefill` starts a sequence, on an empty cache; `decode` adds the next token, whose position is the number of tokens
    in the cache and stays below `max_length`. Anything else raises a `ValueError` where the values can be read. In a
    compiled program, where they cannot, the output of the row is NaN and the row keeps nothing; after a wrong `prefill`
    every later output of the row is NaN too.
    """

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Why the layer cannot decode with a cache, as text; None if it can."""
        if not self.can_be_causal:
            return f"{type(self).__name__} cannot hide later positions"
        return self.make_pattern(causal=True).cache_unsupported_reason()

    def init_cache(
        self,
        batch_size: Size,
        max_length: Size | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        positions_in_cache: bool = False,
    ) -> Cache:
        """Returns the cache before the first token.

        Args:
            batch_size: B, an integer or a scalar tensor.
            max_length: the most tokens that a sequence can have, an integer, or in a graph a scalar tensor. None: any
                number (up to 2^30), of a pattern whose cache does not grow, such as a window or `Window(w) | First(n)`.
            memory: float (B, L, D), inputs of the L positions before the first token, as in a call of a layer with
                `supports_memory`. They take no positions: the first token is at 0. None: nothing comes before.
            memory_mask: bool (B, L), False where there is nothing, or another document. None: all are seen.
            positions_in_cache: whether rotary positions of keys are their places among those that a query can see, as
                in StreamingLLM (Xiao et al. 2024), and no position is ever larger than the cache; of windows with or
                without first tokens. Once there are more tokens than that, results are no longer those of a call,
                where the first tokens are further away, and `prefill` takes no longer prompts. Default False.

        Returns:
            Dictionary of tensors: floats in the compute dtype, counters int32; with a memory also a mask of it.

        Raises:
            ValueError: if the layer cannot decode with a cache or is not built, for a memory that it does not take, or
                of another shape, and for no `max_length` or `positions_in_cache` where the pattern does not allow it.
        """
        check_has_cache(self)
        if not self.built:
            raise ValueError(f"`{self.name}` must be built before it decodes: call it, or `build` it.")
        pattern, sizes = self.make_pattern(causal=True), (self.key_dim, self.value_dim)
        plans = self.plan_heads(pattern)
        max_length = length_of_cache(self, plans, max_length)
        for name, size in (("batch_size", batch_size), ("max_length", max_length)):
            if not ops.is_tensor(size):
                checks.check_count(name, size)
        check_length(pattern, "max_length", max_length)
        length = max_length if memory is None else max_length + shape(memory)[1]
        cache = empty_cache(plans, batch_size, sizes, length, self.compute_dtype)
        if positions_in_cache:
            cache = mark_unturned(self, plans, cache, memory)
        if memory is not None:
            cache = fill_memory(cache, *keys_of_memory(self, memory, memory_mask, batch_size))
        num_tokens = ops.zeros((batch_size,), dtype="int32")
        return {**cache, **self.extra_entries(cache, batch_size, max_length), NUM_TOKENS: num_tokens}

    def prefill(
        self, x: Tensor, cache: Cache, mask: Tensor | None = None, kept: Size | None = None
    ) -> tuple[Tensor, Cache]:
        """Returns the results for a prompt, in one pass, and the cache after it.

        Args:
            x: float (B, T, D), from the first token on.
            cache: what `init_cache` returned; it must hold no tokens yet.
            mask: bool (B, T), False for padding, which must be on the right. None: no padding.
            kept: int32 () or (B,), how many tokens of each row the cache has afterwards, where it is to go on from
                within the prompt. None: all that are no padding.

        Returns:
            Pair of the output (B, T, D) and the cache.

        Raises:
            ValueError: for a cache of another layer or of other rows, for one that holds tokens, for padding on the
                left, and for a prompt that the cache cannot hold.
        """
        check_has_cache(self)
        attention_checks.check_call(self, x, None, None, (self.num_features,) * 2)
        plans = self.plan_heads(self.make_pattern(causal=True))
        check_cache(x, cache, plans)
        check_space("x", plans, cache, x.shape[1])
        if is_unturned(cache):
            check_prompt(self, plans, x.shape[1])
        masks = token_masks(x, None, None, mask, num_heads=self.num_heads)
        is_valid = check_prompt_start(cache, masks.query_mask)
        x = zero_padding(x, masks.query_mask)
        heads = self.project(x)
        output = self.attend(
            x, *with_cached_memory(self, cache, heads, masks), causal=True, training=False, return_weights=False
        )
        batch, length = shape(x)[:2]
        lengths = ops.full((batch,), length, dtype="int32")
        if masks.query_mask is not None:
            lengths = ops.sum(ops.cast(ops.broadcast_to(masks.query_mask, (batch, length)), "int32"), axis=-1)
        if kept is not None:
            lengths = ops.minimum(lengths, ops.cast(kept, "int32"))
        cache = {**self.fill_attention(heads, cache, lengths), NUM_TOKENS: lengths}
        if is_valid is not None:
            output = ops.where(is_valid[:, None, None], output, float("nan"))
            cache[NUM_TOKENS] = ops.where(is_valid, lengths, -1)
        return output, cache

    def decode(self, x: Tensor, cache: Cache, index: Size) -> tuple[Tensor, Cache]:
        """Returns the result for the next token and the cache after it.

        Args:
            x: float (B, 1, D).
            cache: what `init_cache`, `prefill` or the last `decode` returned.
            index: int32 () or (B,), the position of the token: the number of tokens in the cache. A tensor may have -1
                for rows without a token, whose output is NaN and which keep nothing.

        Returns:
            Pair of the output (B, 1, D) and the cache.

        Raises:
            ValueError: for a cache of another layer or of other rows, for an index that is not the number of tokens in
                the cache, and for a position beyond the `max_length` of a cache that cannot hold it.
        """
        check_has_cache(self)
        checks.check_static("x", x.shape, ((None,), (1,), (self.num_features,)))
        plans = self.plan_heads(self.make_pattern(causal=True))
        check_cache(x, cache, plans)
        check_index(x, index)
        known = values_of(index)
        if known is not None:
            check_space("index", plans, cache, int(np.max(known)) + 1)
        index = next_positions(cache, ops.broadcast_to(ops.cast(index, "int32"), (shape(x)[0],)))
        output, new = self.decode_attention(self.project(x), cache, index)
        num_tokens = cache[NUM_TOKENS] + ops.cast(index >= 0, "int32")
        return self.join_heads(x, output), {**new, NUM_TOKENS: num_tokens}

    def extra_entries(self, cache: Cache, batch_size: Size, max_length: Size) -> Cache:
        """Returns what a layer keeps beside the entries of its pattern, as it is before the first token.

        Args:
            cache: the entries of the pattern.
            batch_size: as in `init_cache`; so is `max_length`.
        """
        return {}

    def fill_attention(self, heads: ProjectedHeads, cache: Cache, lengths: Tensor) -> Cache:
        """Returns the cache after a prompt.

        Args:
            heads: what `project` returns: queries (B, N, T, H), not scaled, keys (B, M, T, H) or None where queries
                serve as keys, and values (B, M, T, Hv).
            cache: as before the prompt.
            lengths: int32 (B,), tokens of each row.
        """
        (query, key, value), pattern = heads[:3], self.make_pattern(causal=True)
        groups, key = describe_keys(self, pattern, query, key, is_turned=not is_unturned(cache))
        return fill_cache(self.plan_heads(pattern), cache, key, value, groups, lengths)

    def decode_attention(self, heads: ProjectedHeads, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        """Returns attended heads (B, N, 1, Hv) of a token, and the cache after it.

        Args:
            heads: as in `fill_attention`, of one token.
            cache: as before the token.
            index: int32 (B,), the position of the token.
        """
        (query, key, value), pattern = heads[:3], self.make_pattern(causal=True)
        queries = groups_of_leaves(self, pattern, query, index[:, None])
        keys = queries if key is None else groups_of_leaves(self, pattern, key, index[:, None])
        query, key = self.score_inputs(query, key)
        groups = list(zip(queries, keys, strict=True))
        plans, options = self.plan_heads(pattern), self.attention_options(causal=True)
        if is_unturned(cache):
            options = options._replace(position=position_in_cache(self, plans, index))
        key = query if key is None else key
        return decode_pattern(plans, cache, query, key, value, groups, index, options)


def check_has_cache(layer: keras.layers.Layer) -> None:
    """Raises a `ValueError` for a layer or model that cannot decode with a cache."""
    if layer.cache_unsupported_reason is not None:
        raise ValueError(
            f"`{layer.name}` must be one that decodes with a cache: {layer.cache_unsupported_reason}. "
            "Generation without one computes the whole sequence for each token."
        )
