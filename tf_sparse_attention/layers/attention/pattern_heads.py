"""Heads that attend under a pattern: what a subclass says of them, and what follows from it."""

from collections.abc import Sequence

from keras import ops

from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_cache import AttentionCache, ProjectedHeads
from tf_sparse_attention.layers.attention.groupers import Grouper, describe_tokens
from tf_sparse_attention.layers.parts.image_inputs import as_sequences, is_image
from tf_sparse_attention.layers.parts.masks import normalize_self_attention, token_masks
from tf_sparse_attention.layers.parts.seeds_and_dtypes import dropout_of_call
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import rotate_query_and_key
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.engine.attending import attend_pattern
from tf_sparse_attention.patterns.engine.choices import with_choices
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions
from tf_sparse_attention.patterns.engine.plan import HeadPlan, plan_heads
from tf_sparse_attention.patterns.engine.twin import dense_pattern
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.types import Tensor


class PatternHeads(AttentionCache):
    """Attention of projected heads under a pattern: what `AttentionLayer` is but for its projections and masks.

    A subclass gives `make_pattern`. The other methods of the first part have answers for plain heads.
    """

    share_qk = False  # whether queries serve as keys, so that no key projection exists
    sees_beyond_window = False  # whether a layer that has a `window` sees tokens outside it
    # Whether a token sees itself only if it sees nothing else; None: where queries serve as keys.
    mask_self: bool | None = False
    # Whether a key has the value of the token after it, see `Successors`; also where a pattern says so by itself.
    use_successor_values = False
    # M, where heads beside each other share keys and values; None: each has its own.
    num_key_value_heads: int | None = None
    # For each leaf of a pattern that goes by content what assigns tokens to its groups.
    groupers: Sequence[Grouper | None] = ()

    # What a subclass says: its pattern, and what differs from plain heads.

    def make_pattern(self, causal: bool) -> Pattern:
        """Returns the `Pattern` of the heads in a causal call, or in one that is not."""
        raise NotImplementedError(f"{type(self).__name__} must define `make_pattern`.")

    def group_inputs(self, heads: Tensor) -> Tensor:
        """Returns queries or keys (B, n, T, H) as groupers see them."""
        return heads

    def score_inputs(self, query: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns queries and keys, None where queries serve, as scores compare them, in the compute dtype."""
        if key is None:  # the same rows on both sides are arranged once, so each side has half of the scale
            return query * self.score_scale**0.5, None
        return query * self.score_scale, key

    @property
    def score_scale(self) -> float:
        """The factor of q . k."""
        scale = self.head_settings.attention_scale
        return self.key_dim**-0.5 if scale is None else scale

    def attention_options(self, causal: bool, training: bool = False) -> AttentionOptions:
        """Returns the `AttentionOptions` of a call; adds the losses that they have in training."""
        hides = self.share_qk if self.mask_self is None else self.mask_self
        return AttentionOptions(
            self.position_encoding,
            hide_self="unless_alone" if hides else None,
            soft_cap=self.head_settings.logit_soft_cap,
            sinks=None if self.head_sinks is None else ops.convert_to_tensor(self.head_sinks),
        )

    def with_successors(self, pattern: Pattern) -> Pattern:
        """Returns a pattern, with the values of successors if the layer says so."""
        return Successors(pattern) if self.use_successor_values else pattern

    # What follows from the pattern.

    @property
    def must_be_causal(self) -> bool:
        """Whether a part of the pattern is for causal self-attention alone."""
        return self.causal_part is not None

    @property
    def causal_part(self) -> str | None:
        """The classes of the layer and of a part of its pattern that is for causal self-attention alone, or None."""
        leaves = self.make_pattern(causal=True).leaves() if self.can_be_causal else []
        parts = (type(leaf).__name__ for leaf in leaves if leaf.must_be_causal)
        return next((f"{type(self).__name__} ({part})" for part in parts), None)

    @property
    def can_be_causal(self) -> bool:
        """Whether later positions can be hidden at all."""
        return True

    @property
    def causal_selection(self) -> bool:
        """Whether, under a causal mask, which keys a query sees is independent of later tokens."""
        return not self.can_be_causal or self.make_pattern(causal=True).causal_selection

    @property
    def supports_memory(self) -> bool:
        """Whether a call takes the inputs of earlier positions as further keys."""
        return self.can_be_causal and not self.share_qk and self.make_pattern(causal=True).takes_memory

    @property
    def reach(self) -> int:
        """The default of `max_distance`; with `supports_memory`, no key is seen from further away."""
        return self.make_pattern(causal=False).reach

    @property
    def dense_up_to(self) -> int:
        """The longest sequence in which a query may see all earlier tokens, whatever is selected."""
        return self.make_pattern(causal=False).dense_up_to

    @property
    def num_pattern_heads(self) -> int:
        """The heads that attend to the sequence: all of them, unless a subclass says otherwise."""
        return self.num_heads

    @property
    def num_key_heads(self) -> int:
        """M, the heads that keys and values have."""
        return self.num_key_value_heads or self.num_pattern_heads

    def plan_heads(self, pattern: Pattern) -> list[HeadPlan]:
        """Returns the `HeadPlan` of each set of heads of a pattern of this layer."""
        return plan_heads(pattern, self.num_pattern_heads, self.num_key_heads)

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention of projected heads.

        Args:
            heads: what `project` returns: queries (B, N, T, H), not scaled, keys (B, M, S, H) or None where queries
                serve as keys, and values (B, M, S, Hv).
            masks: `TokenMasks`; the caller applies `query_mask` to the result.
            causal: boolean, as are `training` and `return_weights`.

        Returns:
            Pair of the heads (B, N, T, Hv) and the weights (B, N, T, S) or None.
        """
        (query, key, value), pattern = heads, self.make_pattern(causal)
        known = self.describe_tokens(pattern, query, key, masks, training)
        attended = attend_pattern(
            pattern,
            *self.score_inputs(query, key),
            value,
            causal=causal,
            masks=masks,
            known=known,
            dropout=dropout_of_call(self, training),
            return_weights=return_weights,
            **self.attention_options(causal, training)._asdict(),
        )
        return attended.output, attended.weights

    def describe_tokens(
        self, pattern: Pattern, query: Tensor, key: Tensor | None, masks: TokenMasks, training: bool = False
    ) -> Sequence[Known] | None:
        """Returns the `known` of `attend_pattern` for projected heads; groups learn in training."""
        return describe_tokens(self, pattern, query, key, masks, training)

    def attention_pattern(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        use_causal_mask: bool = False,
        **masks: Tensor | None,
    ) -> Tensor:
        """Returns which keys each query sees, the dense twin of the layer, for tests and pictures.

        Args:
            query: as in a call; likewise `value`, `key`.
            use_causal_mask: as in a call.
            **masks: of a call: `query_mask`, `value_mask`, `key_mask`, `attention_mask`, `segment_ids` and
                `value_segment_ids`.

        Returns:
            Bool (B, N, T, S). O(T S) memory.

        Raises:
            ValueError: as in a call, and for a mask that the layer does not take.
        """
        value, key = normalize_self_attention(query, value, key)
        if any(map(is_image, (query, value, key))):
            return self.attention_pattern(
                **as_sequences(self, query, value, key, **masks), use_causal_mask=use_causal_mask
            )
        if not self.built:
            self.build(query.shape, *(None if x is None else x.shape for x in (value, key)))
        names = ("query_mask", "value_mask", "key_mask", "attention_mask", "segment_ids", "value_segment_ids")
        attention_checks.check_mask_names(masks, [*names, *self.extra_mask_names])
        given = {name: masks.pop(name, None) for name in names}
        tokens = token_masks(query, value, key, **given, num_heads=self.num_heads)
        tokens = self.add_extra_masks(tokens, query, **masks)
        heads = self.project(query, value, key)
        sizes = (*shape(heads[0])[:3], shape(heads[2])[2])
        return ops.broadcast_to(self.dense_mask(heads, tokens, use_causal_mask), sizes)

    def dense_mask(self, heads: ProjectedHeads, masks: TokenMasks, causal: bool) -> Tensor:
        """Returns which keys each query sees, bool broadcastable to (B, N, T, S), of projected heads."""
        (query, key), pattern = heads[:2], self.make_pattern(causal)
        known = self.describe_tokens(pattern, query, key, masks)
        call = Call.of(pattern, query, query if key is None else key, causal, masks)
        if any(leaf.queries_choose for leaf in pattern.leaves()):
            query, key = self.score_inputs(query, key)
            turned = rotate_query_and_key(self.position_encoding, query, query if key is None else key)
            known = with_choices(pattern, known, *turned, masks)
        return dense_pattern(pattern, call, query.shape[1], masks, known, self.attention_options(causal))
