"""Decoding of a Transformer block with a cache."""

from typing import Any

from keras import ops

from tf_sparse_attention.layers.attention.attention_cache import check_has_cache
from tf_sparse_attention.layers.attention.cache_checks import check_entries, check_source
from tf_sparse_attention.layers.parts.masks import finite_padding, mask_of_tokens
from tf_sparse_attention.layers.parts.norms import is_before
from tf_sparse_attention.types import Size, Tensor


class BlockCache:
    """The three methods of decoding of a `TransformerBlock`."""

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Why the block cannot decode with a cache, as text; None if it can."""
        if not self.causal:
            return "it sees later positions"
        if self.reproduce_reference:
            return "with reproduce_reference=True padding takes part in what attention chooses"
        across = None if self.cross_attention is None else self.cross_attention.cross_cache_unsupported_reason
        return self.attention.cache_unsupported_reason or across

    def init_cache(
        self,
        batch_size: Size,
        max_length: Size | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        encoder_sequence: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        positions_in_cache: bool = False,
    ) -> dict[str, Any]:
        """Returns the caches by the names of the attention layers, before the first token.

        The arguments are those of `AttentionLayer.init_cache`. A memory is inputs of this block, as in a call. The keys
        and values of an encoder's sequence are computed here.

        Raises:
            ValueError: as `AttentionLayer.init_cache`, and where a block with `cross_attention` gets no
                `encoder_sequence`, or another gets one.
        """
        check_has_cache(self)
        self._check_encoder_sequence(encoder_sequence)
        if memory is not None and is_before(self.norm):
            memory = self._attention_norm(memory)
        given = batch_size, max_length, memory, memory_mask, positions_in_cache
        cache = {self.attention.name: self.attention.init_cache(*given)}
        if self.cross_attention is not None:
            across = self.cross_attention.init_cross_cache(encoder_sequence, value_mask=encoder_padding_mask)
            cache[self.cross_attention.name] = across
        return cache

    def prefill(
        self,
        inputs: Tensor,
        cache: dict[str, Any],
        mask: Tensor | None = None,
        encoder_sequence: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Returns the results (B, T, D) for a prompt and the cache after it.

        Args:
            inputs: float (B, T, D), from the first token on.
            cache: what `init_cache` returned; it must hold no tokens yet.
            mask: bool (B, T), False for padding, which must be on the right. None: the mask that `inputs` carries.
            encoder_sequence: the one that `init_cache` had.
            encoder_padding_mask: the one that `init_cache` had.

        Raises:
            ValueError: as `AttentionLayer.prefill`, and for another encoder sequence than that of `init_cache`.
        """
        self._check_encoder_sequence(encoder_sequence)
        mask = mask_of_tokens("mask", mask, inputs)
        inputs = finite_padding(inputs, mask)

        def attend_across(x, own):
            check_source("encoder_sequence", encoder_sequence, own)
            masks = {"query_mask": mask, "value_mask": encoder_padding_mask}
            return self.cross_attention(x, encoder_sequence, training=False, **masks)

        return self._decoded(
            inputs,
            cache,
            lambda x, own: self.attention.prefill(x, own, mask),
            attend_across,
        )

    def decode(self, inputs: Tensor, cache: dict[str, Any], index: Size) -> tuple[Tensor, dict[str, Any]]:
        """Returns the result (B, 1, D) for the next token, and the cache after it.

        Args:
            inputs: float (B, 1, D).
            cache: what `init_cache`, `prefill` or the last `decode` returned.
            index: int32 () or (B,), the position of the token: the number of tokens in the cache.

        Raises:
            ValueError: as `AttentionLayer.decode`.
        """
        return self._decoded(
            inputs,
            cache,
            lambda x, own: self.attention.decode(x, own, index),
            lambda x, own: self.cross_attention.decode_cross(x, own, index),
        )

    def _decoded(self, inputs, cache, attend, attend_across):
        """Returns the results for inputs, and the cache of which its attentions keep what they return."""
        check_entries(cache, [layer.name for layer in (self.attention, self.cross_attention) if layer is not None])
        name, new, inputs = self.attention.name, dict(cache), ops.cast(inputs, self.compute_dtype)

        def attend_and_keep(x):
            output, new[name] = attend(x, cache[name])
            return output

        x = self._residual(inputs, attend_and_keep, self._attention_norm, training=False)
        if self.cross_attention is not None:
            own = cache[self.cross_attention.name]  # which does not change
            x = self._residual(x, lambda x: attend_across(x, own), self._cross_attention_norm, training=False)
        if self.feed_forward is not None:
            x = self._residual(x, self.feed_forward, self._feed_forward_norm, training=False)
        return x, new
