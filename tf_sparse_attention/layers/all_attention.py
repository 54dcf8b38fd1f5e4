"""All-attention as a Keras layer."""

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.adaptive_span import checked_span, make_span, span_of_call
from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.layers.persistent_vectors import PersistentVectors
from tf_sparse_attention.ops.blocks import shape, slice_axis
from tf_sparse_attention.ops.decoding import at_most, attend_kept, empty_places, keep_last, keep_next, kept_last
from tf_sparse_attention.ops.decoding_across import kept_run, sequence_cache
from tf_sparse_attention.ops.local import local_attention
from tf_sparse_attention.ops.masks import window_mask
from tf_sparse_attention.ops.persistent import attend_to_slots, one_head, split_head
from tf_sparse_attention.ops.positions import rotate_key

VARIANTS = ("all", "split", "head_split", "single_head")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class AllAttention(AttentionLayer):
    """Attention to a window and to persistent vectors, which replaces attention and feed-forward in one layer.

    Every head has `num_persistent` learned keys and values beside those of the window, in the same softmax, with no
    position (Sukhbaatar et al. 2019, "Augmenting self-attention with persistent memory", equation 9). A block that
    has it needs no feed-forward: `TransformerBlock(AllAttention(...))`, or a `Backbone` without `intermediate_dim`.
    Cost O(T (window + M)).

    A query whose whole window is masked still sees the persistent vectors. Weights that are asked for are those of the
    window.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_persistent: M, persistent vectors of a head. 0: none, for comparison.
        window: L, positions a query sees on a side.
        see_self: whether a query sees its own position and the L - 1 before it (default), or, as in the published code,
            the L before it and not itself.
        variant: what the paper's section 5.3 compares. "all" (default): one softmax. "split": one of the window and one
            of the vectors, whose results are added. "head_split": the first half of the heads has the window, the
            others have the vectors. "single_head": as "split", but with one set of vectors for the joined heads.
        adaptive_span: as in `LocalAttention`; the vectors are always in the span.
        **kwargs: the other arguments of `AttentionLayer`. `position="relative"` has a table for the keys alone.

    Raises:
        ValueError: for a wrong argument, and for variants of a single head or without vectors that need them.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = AllAttention(num_heads=4, key_dim=16, num_persistent=256, window=128, position="relative")
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    supports_memory = True

    def __init__(
        self,
        num_heads,
        key_dim,
        *,
        num_persistent,
        window,
        see_self=True,
        variant="all",
        adaptive_span=None,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_count("num_persistent", num_persistent, minimum=0)
        checks.check_count("window", window)
        checks.check_switch("see_self", see_self)
        checks.check_choice("variant", variant, VARIANTS)
        if variant != "all" and num_persistent == 0:
            raise ValueError(f"`num_persistent` must be positive for variant={variant!r}. Received: num_persistent=0.")
        if variant == "head_split" and num_heads == 1:
            raise ValueError("`num_heads` must be at least 2 for variant='head_split'. Received: num_heads=1.")
        self.num_persistent = num_persistent
        self.window = window
        self.see_self = see_self
        self.variant = variant
        self.adaptive_span = checked_span(adaptive_span, window)

    @property
    def has_relative_values(self):
        return False

    @property
    def num_key_heads(self):
        """The heads that have a window; with "head_split" the others have no keys."""
        return (self.num_heads + 1) // 2 if self.variant == "head_split" else self.num_heads

    @property
    def reach(self):
        return self._to_compute(self.window) - 1

    def build(self, query_shape, value_shape=None, key_shape=None, segment_ids_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.span = make_span(self, self.num_key_heads, first=0 if self.see_self else 1)
        heads, joined = self.num_heads, 1
        if self.variant == "head_split":
            heads -= self.num_key_heads
        elif self.variant == "single_head":
            heads, joined = 1, self.num_heads
        self.persistent = None
        if self.num_persistent:
            self.persistent = PersistentVectors(
                heads,
                self.num_persistent,
                joined * self.key_dim,
                joined * self.value_dim,
                seed=self.seed,
                dtype=self.dtype_policy,
                name="persistent",
            )

    def attend_heads(self, query, key, value, masks, causal, training, return_weights):
        dropout = self.dropout_of_weights(training)
        window, span = span_of_call(self, training)

        def attend_window(query, slots):
            return local_attention(
                query,
                key,
                value,
                window=self._to_compute(window),
                causal=causal,
                see_self=self.see_self,
                masks=masks.of_heads(slice(0, self.num_key_heads)),
                position=self._position_of_window,
                slots=slots,
                span=span,
                dropout=dropout,
                return_weights=return_weights,
            )

        return self._with_persistent(attend_window, query, dropout)

    @property
    def _position_of_window(self):
        return self.position_of_heads.of_heads(slice(0, self.num_key_heads))

    def _with_persistent(self, attend_window, query, dropout=None):
        """Returns attended heads and weights, given a function of scaled queries and slots that attends to a window."""
        slots = None if self.persistent is None else self.persistent.read()
        near = slice_axis(query, -3, 0, self.num_key_heads) * self.key_dim**-0.5
        attended = attend_window(near, slots if self.variant == "all" else None)
        output, weights = attended.output, attended.weights
        if self.variant == "split":
            output = output + attend_to_slots(query * self.key_dim**-0.5, slots, dropout)
        elif self.variant == "single_head":
            joined = one_head(query) * (self.num_heads * self.key_dim) ** -0.5
            output = output + split_head(attend_to_slots(joined, slots, dropout), self.num_heads)
        elif self.variant == "head_split":
            others = slice_axis(query, -3, self.num_key_heads, self.num_heads) * self.key_dim**-0.5
            output = ops.concatenate([output, attend_to_slots(others, slots, dropout)], axis=1)
            if weights is not None:
                nothing = ops.zeros((*shape(others)[:3], shape(weights)[-1]), weights.dtype)
                weights = ops.concatenate([weights, nothing], axis=1)
        return output, weights

    reason_against_cache = None

    def new_cache(self, batch_size, max_length):
        size = at_most(self._to_compute(span_of_call(self, training=False)[0]), max_length)
        sizes = self.num_key_heads, size, self.key_dim, self.value_dim
        return empty_places(batch_size, *sizes, self.compute_dtype)

    def fill_cache(self, cache, query, key, value, lengths):
        return keep_last(cache, rotate_key(self._position_of_window, key), value, lengths)

    def decode_heads(self, query, key, value, cache, index):
        position, (_, span) = self._position_of_window, span_of_call(self, training=False)
        cache = keep_next(cache, rotate_key(position, key, index), value, index)
        return self._attend_kept(query, kept_last(cache, index), index, span), cache

    def _attend_kept(self, query, kept, index, span):
        """Returns attended heads of one query a row to `Kept` keys and to the persistent vectors."""
        if not self.see_self:
            kept = kept._replace(seen=ops.logical_and(kept.seen, kept.tokens != 0))

        def attend_window(query, slots):
            return attend_kept(query, kept, index, self._position_of_window, slots=slots, span=span)

        return self._with_persistent(attend_window, query)[0]

    reason_against_crossing = None

    def new_cross_cache(self, key, value, key_mask):
        return sequence_cache(rotate_key(self._position_of_window, key), value, key_mask)

    def decode_heads_across(self, query, cache, index):
        window, span = span_of_call(self, training=False)
        window = self._to_compute(window)
        return self._attend_kept(query, kept_run(cache, index, index - window + 1, 2 * window - 1), index, span)

    def _to_compute(self, window):
        """Returns the window as `ops` count it, the query's own position included."""
        return window if self.see_self else window + 1

    def pattern(self, query, key, masks, causal):
        lengths = shape(query)[2], shape(key)[2]
        seen = window_mask(*lengths, self._to_compute(self.window), causal, masks.num_memory)
        if not self.see_self:
            own = window_mask(*lengths, 1, True, masks.num_memory)
            seen = ops.logical_and(seen, ops.logical_not(own))
        seen = ops.broadcast_to(seen, (self.num_key_heads, *lengths))
        if self.span is not None:
            seen = ops.logical_and(seen, self.span.read().seen(*lengths, masks.num_memory))
        none = ops.zeros((self.num_heads - self.num_key_heads, *lengths), dtype="bool")
        return ops.concatenate([seen, none], axis=0)

    def get_config(self):
        names = ("num_persistent", "window", "see_self", "variant", "adaptive_span")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
