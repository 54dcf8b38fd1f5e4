"""What all attention layers share: arguments, projections, masks and the order of a call."""

import functools

import keras
from keras import ops

from tf_sparse_attention.deprecation import renamed_attributes
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.pattern_heads import PatternHeads
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.masks import normalize_self_attention, token_masks
from tf_sparse_attention.layers.parts.segment_memory import with_memory
from tf_sparse_attention.layers.replicas import SeedGenerator
from tf_sparse_attention.ops import positions
from tf_sparse_attention.ops.blocks import shape


@renamed_attributes(
    decode_across="decode_cross",
    further_masks="extra_mask_names",
    reason_against_cache="cache_unsupported_reason",
    reason_against_crossing="cross_cache_unsupported_reason",
)
class AttentionLayer(PatternHeads, keras.layers.Layer):
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
        mask: as `query_mask`; the name by which Keras passes the mask that a lone `query` carries.

    Returns:
        Float (B, T, D), or the pair of it and the weights. A query with nothing to attend to has heads of zeros, so
        its output is the output bias.

    Raises:
        ValueError: for an argument of the wrong type, shape or length; T = 0 too.
    """

    extra_mask_names = ()  # of masks that a subclass takes in addition to those of every layer, see `add_extra_masks`

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
        self._objects = projections.get_keras_objects(arguments)
        self._seeds = SeedGenerator(seed) if dropout > 0 else None

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

    def __call__(self, query, value=None, key=None, *args, **kwargs):
        return super().__call__(query, *normalize_self_attention(query, value, key), *args, **kwargs)

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
        **extra_masks,
    ):
        attention_checks.check_call(self, query, value, key, (self.num_features, self._value.kernel.shape[0]))
        masks = (mask if query_mask is None else query_mask, value_mask, key_mask, attention_mask, segment_ids)
        masks = self.add_extra_masks(token_masks(query, value, key, *masks, self.num_heads), query, **extra_masks)
        masks, value = with_memory(self, masks, query, value, memory, memory_segment_ids)
        heads = self.project(query, value, key)
        return self.attend(heads, masks, use_causal_mask, bool(training), return_attention_scores)

    def attend(self, heads, masks, causal, training, return_weights):
        """Returns what a call returns, of projected heads and `TokenMasks`."""
        output, weights = self.compute_attention(heads, masks, causal, training, return_weights)
        if masks.query_mask is not None:
            exists = masks.query_mask[:, None, :, None]
            output = ops.where(exists, output, 0)
            weights = None if weights is None else ops.where(exists, weights, 0)
        output = projections.join_heads(self._attention_output, output)
        return (output, weights) if return_weights else output

    def add_extra_masks(self, masks, query):
        """Returns the `TokenMasks` of a call with those of `extra_mask_names`, which come by name."""
        return masks

    def project(self, query, value=None, key=None):
        """Returns the heads of queries, keys (None where queries serve) and values, heads first."""
        attention_checks.check_sources(type(self).__name__, value, key, not self.share_qk)
        value = query if value is None else value
        keys = None if self.share_qk else self.project_heads(self._key, value if key is None else key)
        return self.project_heads(self._query, query), keys, projections.heads_of(self._value, value)

    def project_heads(self, projection, x):
        """Returns the heads of queries or keys (B, N, T, H) that a projection makes of tokens."""
        return projections.heads_of(projection, x)

    def attention_pattern(self, query, value=None, key=None, use_causal_mask=False, **masks):
        """Returns which keys each query sees, the dense twin of the layer, for tests and pictures.

        Args:
            query: as in a call; likewise `value`, `key`.
            use_causal_mask: as in a call.
            **masks: `query_mask`, `value_mask`, `key_mask`, `attention_mask` and `segment_ids` of a call.

        Returns:
            Bool (B, N, T, S). O(T S) memory.

        Raises:
            ValueError: as in a call, and for a mask that the layer does not take.
        """
        value, key = normalize_self_attention(query, value, key)
        if not self.built:
            self.build(query.shape, *(None if x is None else x.shape for x in (value, key)))
        names = ("query_mask", "value_mask", "key_mask", "attention_mask", "segment_ids")
        known = [*names, *self.extra_mask_names]
        if set(masks) - set(known):
            raise ValueError(f"`masks` must be among {known}. Received: {sorted(set(masks) - set(known))}.")
        tokens = token_masks(query, value, key, *(masks.pop(name, None) for name in names), self.num_heads)
        tokens = self.add_extra_masks(tokens, query, **masks)
        heads = self.project(query, value, key)
        sizes = (*shape(heads[0])[:3], shape(heads[2])[2])
        return ops.broadcast_to(self.dense_mask(heads, tokens, use_causal_mask), sizes)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None, segment_ids_shape=None):
        return (*query_shape[:-1], *(self._output_sizes or (query_shape[-1],)))

    def compute_output_spec(self, query, value=None, key=None, return_attention_scores=False, **kwargs):
        sizes = self.compute_output_shape(query.shape)
        return projections.output_spec(self, sizes, query, value, return_attention_scores)

    def compute_mask(self, query, previous_mask):
        # Keras passes the mask of the query; weights that are returned carry none.
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
