"""What all attention layers share: arguments, projections, masks and the order of a call."""

import functools

import keras
from keras import ops

from tf_sparse_attention.layers import attention_checks, projections
from tf_sparse_attention.layers.attention_cache import AttentionCache
from tf_sparse_attention.layers.call_masks import other_than_query, token_masks
from tf_sparse_attention.layers.groupers import describe_tokens
from tf_sparse_attention.layers.memory import with_memory
from tf_sparse_attention.layers.replicas import SeedGenerator
from tf_sparse_attention.ops import positions
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import document_starts
from tf_sparse_attention.patterns.attending import attend_pattern
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.twin import dense_pattern


class AttentionLayer(AttentionCache, keras.layers.Layer):
    """Base of the attention layers: the constructor and the call of `keras.layers.MultiHeadAttention`.

    A subclass gives `make_pattern`; the rest follows from the pattern. Projections have the names and shapes of
    Keras's: `set_weights` takes over Keras's weights where both layers have the same ones.

    Note: differs from Keras in what a pattern cannot have, `attention_axes`, `flash_attention` and gates, and in its
    third positional argument, which is the pattern's own; write the others by name.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        value_dim: Hv, size of each head for values. None: `key_dim`.
        dropout: rate at which attention weights are dropped in training, in [0, 1). Default 0.
        use_bias: whether the projections have biases. Default True.
        use_output_bias: the same for the output projection alone. None: `use_bias`. `MixedAttention` leaves it to its
            first part.
        output_shape: sizes of the output's last axes, an integer or a tuple. None: the size of the query.
        position: None, "relative" (Shaw et al. 2018, learned tables), "rotary" (`key_dim` even) or "alibi".
        max_distance: M, the largest distance that "relative" tells apart; larger ones are clipped. None: the reach
            of the pattern.
        kernel_initializer: of the projections and tables, as in Keras; so are `bias_initializer`,
            `kernel_regularizer`, `bias_regularizer`, `activity_regularizer`, `kernel_constraint`, `bias_constraint`.
        seed: integer for dropout and random state. None: another one each time.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        query: float (B, T, D).
        value: float (B, S, D'). None, or `query` itself: self-attention.
        key: float (B, S, D''). None: `value`.
        query_mask: bool (B, T), False where a query is padding; its heads are zeros. In self-attention it masks the
            keys too. None: the mask that `query` carries, if any.
        value_mask: bool (B, S), False for padding that no query may see. None: the mask that `value` carries.
        key_mask: bool (B, S), likewise.
        attention_mask: bool of rank 2 (T, S), 3 (B, T, S) or 4, broadcastable to (B, N, T, S); never expanded.
        return_attention_scores: whether to return the weights (B, N, T, S) too: O(T S) memory.
        training: whether to drop weights and update state.
        use_causal_mask: whether later positions are hidden.
        segment_ids: int (B, T), the document of each token of a packed batch; tokens see their own document alone.
        memory: float (B, L, D), inputs of the L positions before the query, in self-attention of layers with
            `supports_memory`: further keys, to which no gradient goes.
        memory_segment_ids: int (B, L), their documents, -1 where there is none yet; tokens see their own, which is 0
            without `segment_ids`. None, without `segment_ids`: all are seen.
        mask: as `query_mask`; the name by which Keras hands over the mask that a lone `query` carries.

    Returns:
        Float (B, T, D), or the pair of it and the weights. A query with nothing to attend to has heads of zeros, so
        its output is the output bias.

    Raises:
        ValueError: for an argument of the wrong type, shape or length; T = 0 too.
    """

    share_qk = False  # whether queries serve as keys, so that no key projection exists
    further_masks = ()  # names of masks that a subclass takes beside those of every layer

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        use_output_bias=None,
        output_shape=None,
        position=None,
        max_distance=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        seed=None,
        **kwargs,
    ):
        arguments = dict(locals())
        super().__init__(**kwargs)
        attention_checks.check_arguments(arguments)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = key_dim if value_dim is None else value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.position = position
        self.max_distance = max_distance
        self.seed = seed
        self.use_output_bias = use_bias if use_output_bias is None else use_output_bias
        self._output_sizes = attention_checks.checked_sizes(output_shape)
        self._objects = projections.objects_of(arguments)
        self._seeds = SeedGenerator(seed) if dropout > 0 else None

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

    def copy_projections(self, attention, heads=slice(None)):
        """Takes over the projections of a built `keras.layers.MultiHeadAttention`, or of a layer of this library.

        Args:
            attention: layer with the sublayers `query`, `key`, `value` and `attention_output`.
            heads: slice of the heads of `attention` that are those of this layer. Default: all.

        Raises:
            ValueError: if the layer is not built, or a projection is missing or has other shapes.
        """
        projections.copy(attention, self, heads)

    @property
    def num_features(self):
        """D, the channels of the query that the layer was built for."""
        return self._query.kernel.shape[0]

    @property
    def has_relative_values(self):
        """Whether relative positions have a table for the values."""
        return True

    def build(self, query_shape, value_shape=None, key_shape=None, segment_ids_shape=None):
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        attention_checks.check_shapes(query_shape, value_shape, key_shape)
        common = {"objects": self._objects, "dtype": self.dtype_policy}
        make = functools.partial(projections.input_projection, use_bias=self.use_bias, **common)
        self._query = make("query", query_shape, self.num_heads, self.key_dim)
        self._key = None if self.share_qk else make("key", key_shape, self.num_key_heads, self.key_dim)
        self._value = make("value", value_shape, self.num_key_heads, self.value_dim)
        self._attention_output = projections.output_projection(
            "attention_output",
            (*query_shape[:-1], self.num_heads, self.value_dim),
            self._output_sizes or (query_shape[-1],),
            self.use_output_bias,
            **common,
        )
        if self.position == "relative":
            num_rows = 2 * (self.max_distance or max(self.reach, 1)) + 1
            self._relative_key, self._relative_value = projections.relative_tables(self, num_rows, self._objects)

    @property
    def position_encoding(self):
        """The position object that `ops` functions take."""
        if self.position == "relative":
            return positions.Relative(self._relative_key, self._relative_value)
        if self.position == "rotary":
            return positions.Rotary()
        return positions.Alibi(self.num_heads) if self.position == "alibi" else positions.NoPosition()

    def attention_dropout(self, training):
        """Returns the `Dropout` of a call, None outside training."""
        return Dropout(self.dropout, self._seeds) if training and self._seeds is not None else None

    def __call__(self, query, value=None, key=None, *args, **kwargs):
        return super().__call__(query, *other_than_query(query, value, key), *args, **kwargs)

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        segment_ids=None,
        memory=None,
        memory_segment_ids=None,
        mask=None,
    ):
        attention_checks.check_call(self, query, value, key, (self.num_features, self._value.kernel.shape[0]))
        masks = (mask if query_mask is None else query_mask, value_mask, key_mask, attention_mask, segment_ids)
        masks = token_masks(query, value, key, *masks, self.num_heads)
        masks, value = with_memory(self, masks, query, value, memory, memory_segment_ids)
        heads = self.project(query, value, key)
        return self.attend(heads, masks, use_causal_mask, bool(training), return_attention_scores)

    def attend(self, heads, masks, causal, training, return_weights):
        """Returns what a call returns, of projected heads and `TokenMasks`."""
        output, weights = self.compute_attention(heads, masks, causal, training, return_weights)
        if masks.query_mask is not None:
            asked = masks.query_mask[:, None, :, None]
            output = ops.where(asked, output, 0)
            weights = None if weights is None else ops.where(asked, weights, 0)
        return (self.join_heads(output), weights) if return_weights else self.join_heads(output)

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

    def with_further_masks(self, masks, query):
        """Returns the `TokenMasks` of a call with those of `further_masks`, which come by name."""
        return masks

    def project(self, query, value=None, key=None):
        """Returns the heads of queries, keys (None where queries serve) and values, heads first."""
        attention_checks.check_sources(type(self).__name__, value, key, not self.share_qk)
        value = query if value is None else value
        keys = None if self.share_qk else projections.heads_of(self._key, value if key is None else key)
        return projections.heads_of(self._query, query), keys, projections.heads_of(self._value, value)

    def join_heads(self, heads):
        """Returns the output (B, T, D) of attended heads (B, N, T, Hv)."""
        return self._attention_output(projections.heads_first(heads))

    def attention_pattern(self, query, value=None, key=None, use_causal_mask=False, **masks):
        """Returns which keys each query sees, the dense twin of the layer, for tests and pictures.

        Args:
            query: as in a call; likewise `value`, `key`.
            use_causal_mask: as in a call.
            **masks: `query_mask`, `value_mask`, `key_mask`, `attention_mask` and `segment_ids` of a call.

        Returns:
            Bool (B, N, T, S). O(T S) memory.
        """
        value, key = other_than_query(query, value, key)
        if not self.built:
            self.build(query.shape, *(None if x is None else x.shape for x in (value, key)))
        names = ("query_mask", "value_mask", "key_mask", "attention_mask", "segment_ids")
        unknown = set(masks) - {*names, *self.further_masks}
        if unknown:
            raise ValueError(f"`masks` must be among {[*names, *self.further_masks]}. Received: {sorted(unknown)}.")
        tokens = token_masks(query, value, key, *(masks.get(name) for name in names), self.num_heads)
        tokens = self.with_further_masks(tokens, query, **{name: masks.get(name) for name in self.further_masks})
        heads = self.project(query, value, key)
        sizes = (*shape(heads[0])[:3], shape(heads[2])[2])
        return ops.broadcast_to(self.dense_mask(heads, tokens, use_causal_mask), sizes)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None, segment_ids_shape=None):
        return (*query_shape[:-1], *(self._output_sizes or (query_shape[-1],)))

    def compute_output_spec(self, query, value=None, key=None, return_attention_scores=False, **kwargs):
        sizes = self.compute_output_shape(query.shape)
        return projections.output_spec(self, sizes, query, value, return_attention_scores)

    def compute_mask(self, query, previous_mask):
        # Keras hands over the mask of the query; the weights, where asked for, carry none.
        return previous_mask

    def get_config(self):
        names = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "use_output_bias", "position")
        names += ("max_distance", "seed")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "output_shape": self._output_sizes,
            **projections.config_of(self._objects),
        }
