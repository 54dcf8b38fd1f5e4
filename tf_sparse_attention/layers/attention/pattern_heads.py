"""Heads that attend under a pattern: what a subclass says of them, and what follows from it."""

from tf_sparse_attention.layers.attention.attention_cache import AttentionCache
from tf_sparse_attention.layers.attention.groupers import describe_tokens
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import document_starts
from tf_sparse_attention.patterns.attending import attend_pattern
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.twin import dense_pattern


class PatternHeads(AttentionCache):
    """Attention of projected heads under a pattern: what `AttentionLayer` is but for its projections and masks.

    A subclass gives `make_pattern`. The other methods of the first part have answers for plain heads.
    """

    share_qk = False  # whether queries serve as keys, so that no key projection exists

    # What a subclass says: its pattern, and what differs from plain heads.

    def make_pattern(self, causal):
        """Returns the `Pattern` of the heads in a causal call, or in one that is not."""
        raise NotImplementedError(f"{type(self).__name__} must define `make_pattern`.")

    @property
    def groupers(self):
        """What assigns tokens to groups, for each of the pattern's leaves; None of one that goes by positions."""
        return [None] * len(self.make_pattern(causal=True).leaves())

    def normalize_heads(self, query, key):
        """Returns queries and keys (B, N, T, H), the latter None where queries serve as keys, as groups see them."""
        return query, key

    def score_inputs(self, query, key):
        """Returns queries and keys of `normalize_heads` as their scores compare them, in the compute dtype."""
        if key is None:  # the same rows on both sides are arranged once, so each side has half of the scale
            return query * self.key_dim**-0.25, None
        return query * self.key_dim**-0.5, key

    def hide_self(self, causal):
        """Returns the `hide_self` of `attend_pattern`."""
        return None

    def span_of_call(self, training):
        """Returns the `ops.span.Span` of a call or None, and adds its loss in training."""
        return None

    @property
    def persistent_vectors(self):
        """Pair of keys and values that every query sees beside those of the sequence, or None."""
        return None

    # What follows from the pattern.

    @property
    def can_be_causal(self):
        """Whether later positions can be hidden at all."""
        return True

    @property
    def causal_selection(self):
        """Whether, under a causal mask, which keys a query sees is independent of later tokens."""
        return not self.can_be_causal or self.make_pattern(causal=True).causal_selection

    @property
    def supports_memory(self):
        """Whether a call takes the inputs of earlier positions as further keys."""
        return self.can_be_causal and self.make_pattern(causal=True).takes_memory

    @property
    def reach(self):
        """The default of `max_distance`; with `supports_memory`, no key is seen from further away."""
        return self.make_pattern(causal=False).reach

    @property
    def num_key_heads(self):
        """The heads that have keys and values of the sequence: all of them, unless a subclass says otherwise."""
        return self.num_heads

    def compute_attention(self, heads, masks, causal, training=False, return_weights=False):
        """Computes attention of projected heads.

        Args:
            heads: what `project` returns: queries (B, N, T, H), not scaled, keys (B, N, S, H) or None where queries
                serve as keys, and values (B, N, S, Hv).
            masks: `TokenMasks`; the caller applies `query_mask` to the result.
            causal: boolean, as are `training` and `return_weights`.

        Returns:
            Pair of the heads (B, N, T, Hv) and the weights (B, N, T, S) or None.
        """
        (query, key, value), pattern = heads, self.make_pattern(causal)
        query, key = self.normalize_heads(query, key)
        known = self.describe_tokens(pattern, query, key, masks, training)
        query, key = self.score_inputs(query, key)
        attended = attend_pattern(
            pattern,
            query,
            key,
            value,
            causal=causal,
            masks=masks,
            known=known,
            position=self.key_position_encoding,
            span=self.span_of_call(training),
            hide_self=self.hide_self(causal),
            dropout=self.attention_dropout(training),
            persistent=self.persistent_vectors,
            return_weights=return_weights,
        )
        return attended.output, attended.weights

    def describe_tokens(self, pattern, query, key, masks, training=False):
        """Returns the `known` of `attend_pattern` for heads of `normalize_heads`; groups learn in training."""
        return describe_tokens(self, pattern, query, key, masks, training)

    def dense_mask(self, heads, masks, causal):
        """Returns which keys each query sees, bool broadcastable to (B, N, T, S), of projected heads."""
        (query, key), pattern = heads[:2], self.make_pattern(causal)
        query, key = self.normalize_heads(query, key)
        known = self.describe_tokens(pattern, query, key, masks)
        num_keys = shape(query if key is None else key)[2]
        starts = document_starts(masks) if pattern.uses_starts else None
        call = Call(shape(query)[0], shape(query)[2], num_keys, causal, masks.num_memory, starts)
        span = self.span_of_call(training=False)
        return dense_pattern(pattern, call, query.shape[1], masks, known, span, self.hide_self(causal))
