"""What all attention layers share: arguments, projections, masks and the order of a call."""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_checks import (
    NUM_TOKENS,
    check_cache,
    check_index,
    check_pattern_entries,
    check_prompt_start,
    check_space,
    next_positions,
)
from tf_sparse_attention.layers.attention.groupers import Grouper, describe_tokens, groups_of_leaves, groups_of_sequence
from tf_sparse_attention.layers.attention.streaming_cache import (
    check_prompt,
    is_unturned,
    length_of_cache,
    mark_unturned,
    position_in_cache,
)
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin
from tf_sparse_attention.layers.parts.head_settings import HeadSettings, gated, make_gate, make_norms, make_sinks
from tf_sparse_attention.layers.parts.image_inputs import as_images, as_sequences, is_image, sequence_shape
from tf_sparse_attention.layers.parts.integers import values_of
from tf_sparse_attention.layers.parts.masks import (
    as_tensor,
    mask_of_tokens,
    normalize_self_attention,
    token_masks,
    zero_padding,
)
from tf_sparse_attention.layers.parts.segment_memory import keys_of_memory, with_cached_memory, with_memory
from tf_sparse_attention.layers.parts.variables import dropout_of_call
from tf_sparse_attention.layers.replicas import SeedGenerator
from tf_sparse_attention.ops import positions
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import TokenMasks, merge
from tf_sparse_attention.ops.positions import rotate_both, rotate_key
from tf_sparse_attention.patterns.call import Call, Known, check_length
from tf_sparse_attention.patterns.engine.attending import attend_pattern
from tf_sparse_attention.patterns.engine.choices import with_choices
from tf_sparse_attention.patterns.engine.cross_decoding import cross_cache, decode_cross_pattern
from tf_sparse_attention.patterns.engine.decoding import decode_pattern
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions
from tf_sparse_attention.patterns.engine.plan import HeadPlan, plan_heads
from tf_sparse_attention.patterns.engine.slots import Cache, empty_cache, fill_cache, fill_memory
from tf_sparse_attention.patterns.engine.twin import dense_pattern
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.types import Config, Constraint, Initializer, Regularizer, Shape, Size, Tensor

# Queries, keys (None where queries serve as keys) and values, heads first; and what else a layer projects.
ProjectedHeads: TypeAlias = tuple[Any, ...]


class AttentionLayer(AdaptableMixin, keras.layers.Layer):
    """Base of the attention layers: the constructor and the call of `keras.layers.MultiHeadAttention`.

    A subclass gives `make_pattern`; the rest follows from the pattern. The projections have the names, the shapes and
    the order of those in Keras: `set_weights` takes the list of a Keras layer's weights, and `load_weights` reads a
    file of a model that had Keras layers of the same names.

    Note: differs from Keras in these points.

    - A pattern is defined along one sequence: inputs have rank 3 or 4, and `attention_axes` may be None, (1,) for
      sequences or (1, 2) for images.
    - Kernels are chosen automatically. `flash_attention` may be None or False.
    - Only `LocalAttention` and `GlobalLocalAttention` take a `sliding_window`, and store it as `window`. For other
      layers it must be None.
    - Masks are boolean or integers; floating-point masks are an error.
    - A padded query has heads of zeros.
    - Arguments from the third one on are written by name: their order differs.
    - `compute_attention` is the method to override, not `_compute_attention`.

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
        max_distance: the largest distance that "relative" tells apart; larger ones are clipped. None: the reach
            of the pattern.
        kernel_initializer: of the projections and tables, as in Keras; so are `bias_initializer`,
            `kernel_regularizer`, `bias_regularizer`, `activity_regularizer`, `kernel_constraint`, `bias_constraint`.
        seed: integer for dropout and random state. None: another one each time.
        num_key_value_heads: M, heads of keys and values, each shared by N / M query heads beside each other (grouped
            queries, Ainslie et al. 2023); centroids and hash axes are those of a key head. None: N.
        attention_scale: factor of q . k. None: that of the pattern, mostly 1 / sqrt(key_dim).
        logit_soft_cap: c of c tanh(q . k / c) in place of the scaled q . k, before what positions add. None: no cap.
        use_sink: whether the softmax of each head has a learned logit without a value, as in gpt-oss. Default False.
        use_query_key_norm: whether queries and keys are divided by their root mean square, with a learned scale for
            each channel, before positions turn them; `query_key_norm_epsilon`, default 1e-6, is added to the square.
        use_gate: whether attended heads are multiplied by a sigmoid of a projection of the query, as Keras's gate is
            (Qiu et al. 2025, arXiv 2505.06708). Default False.
        rotary_max_wavelength: base of the frequencies of position "rotary", default 10000. `rotary_type` "linear",
            "dynamic", "yarn" or "llama3" and `rotary_scaling_factor` stretch them, `rotary_dim` is how many channels
            of a head turn; these and the others are those of `ops.rotary.RotarySettings` with "rotary_" before.
        **kwargs: the arguments from `num_key_value_heads` on, `name`, `dtype` and `trainable`.

    Call arguments:
        query: float (B, T, D), or images (B, H, W, D), whose pixels row by row are the T = H W tokens; its masks and
            segment ids may then be (B, H, W). `value` and `key` likewise.
        value: float (B, S, D'). None, or `query` itself: self-attention.
        key: float (B, S, D''). None: `value`.
        query_mask: bool (B, T), False where a query is padding; its heads are zeros. In self-attention it masks the
            keys too. None: the mask that `query` carries, if any. What padding contains, NaN included, changes neither
            results nor gradients.
        value_mask: bool (B, S), False for padding that no query may see, which may contain anything if `value` is
            another sequence. None: the mask that `value` carries.
        key_mask: bool (B, S), likewise.
        attention_mask: bool of rank 2 (T, S), with a warning if B = T; 3 (B, T, S) or 4, broadcastable to (B, N, T, S).
        return_attention_scores: whether to return the weights (B, N, T, S) too: O(T S) memory.
        training: whether to drop weights and update state.
        use_causal_mask: whether later positions are hidden.
        segment_ids: int (B, T), the document of each token of a packed batch, each one run of an id of its own; tokens
            see their own document alone.
        value_segment_ids: int (B, S), the document of each key of another sequence, with `segment_ids`. None:
            `segment_ids`, of sequences of one length.
        memory: float (B, L, D), inputs of the L positions before the query, in self-attention of layers with
            `supports_memory`: further keys, to which no gradient goes and of which `attention_mask` says nothing.
        memory_segment_ids: int (B, L), their documents, -1 where there is none yet; tokens see their own, which is 0
            without `segment_ids`. None, without `segment_ids`: all are seen.
        mask: as `query_mask`; the name by which Keras passes the mask that a lone `query` carries.

    Returns:
        Float (B, T, D), (B, H, W, D) of images, or the pair of it and the weights. A query with nothing to attend to
        has heads of zeros, so its output is the output bias.

    Raises:
        ValueError: for an argument of the wrong type, shape or length; T = 0 too.
    """

    position_kinds: tuple[str | None, ...] = (None, "relative", "rotary", "alibi")  # what `position` may be
    # Of masks that a subclass takes in addition to those of every layer, see `add_extra_masks`.
    extra_mask_names: tuple[str, ...] = ()

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        use_output_bias: bool | None = None,
        output_shape: int | Sequence[int] | None = None,
        position: str | None = None,
        max_distance: int | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = dict(locals())
        self.attention_axes = attention_checks.take_keras_arguments(self, kwargs)
        self.head_settings = HeadSettings.taken_from(kwargs)
        attention_checks.check_arguments(self, arguments)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.num_key_value_heads = self.head_settings.num_key_value_heads
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
        self.head_settings.check_for(self)

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        query_shape, value_shape, key_shape = self._sequence_shapes(query_shape, value_shape, key_shape)
        self.head_settings.check_for(self)  # again, since a subclass may have set `share_qk` after `__init__` here
        self.build_projections(query_shape, value_shape, key_shape)

    def _sequence_shapes(self, query_shape: Shape, value_shape: Shape | None, key_shape: Shape | None) -> list[Shape]:
        """Return the shapes (B, T, D) of the inputs of a call, images as sequences of their pixels."""
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        shapes = [sequence_shape(self, sizes) for sizes in (query_shape, value_shape, key_shape)]
        attention_checks.check_shapes(*shapes)
        return shapes

    def __call__(
        self, query: Tensor, value: Tensor | None = None, key: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        return super().__call__(query, *normalize_self_attention(query, value, key), *args, **kwargs)

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        segment_ids: Tensor | None = None,
        memory: Tensor | None = None,
        memory_segment_ids: Tensor | None = None,
        mask: Tensor | None = None,
        value_segment_ids: Tensor | None = None,
        **extra_masks: Tensor | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        query_mask = mask if query_mask is None else query_mask
        if any(map(is_image, (query, value, key))):
            own = {"query_mask": query_mask, "value_mask": value_mask, "key_mask": key_mask, "segment_ids": segment_ids}
            own |= {"value_segment_ids": value_segment_ids}
            given = as_sequences(self, query, value, key, **own, **extra_masks)
            given |= {"attention_mask": attention_mask, "return_attention_scores": return_attention_scores}
            given |= {"training": training, "use_causal_mask": use_causal_mask}
            given |= {"memory": memory, "memory_segment_ids": memory_segment_ids}
            return as_images(self.call(**given), query)
        attention_checks.check_extra_masks(self, extra_masks)
        attention_checks.check_call(self, query, value, key, (self.num_features, self._value.kernel.shape[0]))
        masks = token_masks(
            query,
            value,
            key,
            query_mask,
            value_mask,
            key_mask,
            attention_mask,
            segment_ids,
            value_segment_ids,
            num_heads=self.num_heads,
        )
        query = zero_padding(query, masks.query_mask)
        if value is not None:
            value, key = (None if x is None else zero_padding(x, masks.key_mask) for x in (value, key))
        masks = self.add_extra_masks(masks, query, **extra_masks)
        masks, value = with_memory(self, masks, query, value, memory, memory_segment_ids)
        heads = self.project(query, value, key)
        return self.attend(query, heads, masks, use_causal_mask, bool(training), return_attention_scores)

    def attend(
        self,
        query: Tensor,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool,
        return_weights: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Returns what a call returns, of the query (B, T, D), projected heads and `TokenMasks`."""
        output, weights = self.compute_attention(heads, masks, causal, training, return_weights)
        if masks.query_mask is not None:
            exists = masks.query_mask[:, None, :, None]
            output = ops.where(exists, output, 0)
            weights = None if weights is None else ops.where(exists, weights, 0)
        output = self.join_heads(query, output)
        return (output, weights) if return_weights else output

    def add_extra_masks(self, masks: TokenMasks, query: Tensor) -> TokenMasks:
        """Returns the `TokenMasks` of a call with those of `extra_mask_names`, which come by name."""
        return masks

    def copy_projections(self, attention: keras.layers.Layer, heads: slice = slice(None)) -> None:
        """Takes over the projections of a built attention of Keras, also one with shared keys, or of this library.

        Args:
            attention: `keras.layers.MultiHeadAttention`, `keras.layers.GroupQueryAttention`, or a layer with such
                sublayers: `query`, `key`, `value`, `attention_output` and perhaps `gate`.
            heads: slice of the heads of `attention` that are those of this layer. Default: all.

        Raises:
            ValueError: if the layer is not built, or a projection is missing or has other shapes.
        """
        projections.copy(attention, self, heads)

    @property
    def query_dense(self) -> keras.layers.EinsumDense:
        """The projection of the query, as in Keras."""
        return self._query

    @property
    def key_dense(self) -> keras.layers.EinsumDense | None:
        """The projection of the key, as in Keras. None where queries serve as keys."""
        return self._key

    @property
    def value_dense(self) -> keras.layers.EinsumDense:
        """The projection of the value, as in Keras."""
        return self._value

    @property
    def output_dense(self) -> keras.layers.EinsumDense:
        """The projection of the attended heads to the output, as in Keras."""
        return self._attention_output

    # Files of weights name a layer by its attribute. These are the names in files of `GroupQueryAttention`; the
    # public ones, and `_gate_dense`, are those in files of `MultiHeadAttention`.
    _query_dense, _key_dense, _value_dense, _output_dense = query_dense, key_dense, value_dense, output_dense

    @property
    def num_features(self) -> int:
        """D, the channels of the query that the layer was built for."""
        return self._query.kernel.shape[0]

    @property
    def has_relative_values(self) -> bool:
        """Whether relative positions have a table for the values."""
        return True

    def build_projections(self, query_shape: Shape, value_shape: Shape, key_shape: Shape) -> None:
        """Makes the weights for inputs of some shapes (B, T, D)."""
        make = functools.partial(projections.input_projection, self, use_bias=self.use_bias, objects=self._objects)
        self._query = make("query", query_shape, self.num_heads, self.key_dim)
        self._key = None if self.share_qk else make("key", key_shape, self.num_key_heads, self.key_dim)
        self._gate_dense = make_gate(self, query_shape, self._objects)  # before the value, as in Keras
        self._value = make("value", value_shape, self.num_key_heads, self.value_dim)
        self._attention_output = projections.output_projection(
            self,
            "attention_output",
            (*query_shape[:-1], self.num_heads, self.value_dim),
            self._output_sizes or (query_shape[-1],),  # type: ignore[arg-type]  # features are known
            self.use_output_bias,
            self._objects,
        )
        self.head_norms = make_norms(self)
        self.head_sinks = make_sinks(self)
        if self.position == "relative":
            num_rows = 2 * (self.max_distance or max(self.reach, 1)) + 1
            self._relative_key, self._relative_value = projections.relative_tables(self, num_rows, self._objects)

    @property
    def position_encoding(self) -> positions.NoPosition:
        """The position object that `ops` functions take."""
        tables = (self._relative_key, self._relative_value) if self.position == "relative" else (None, None)
        return positions.position_of(self.position, self.num_heads, *tables, self.head_settings.rotary)

    def project(self, query: Tensor, value: Tensor | None = None, key: Tensor | None = None) -> ProjectedHeads:
        """Returns the heads of queries, keys (None where queries serve) and values, heads first."""
        attention_checks.check_sources(self, value, key)
        value = query if value is None else value
        keys = None if self.share_qk else self.project_heads(self._key, value if key is None else key)
        return self.project_heads(self._query, query), keys, projections.heads_of(self._value, value)

    def join_heads(self, query: Tensor, heads: Tensor) -> Tensor:
        """Returns the output (B, T, D) of the attended heads (B, N, T, Hv) of a query (B, T, D)."""
        return projections.join_heads(self._attention_output, gated(self._gate_dense, query, heads))

    def project_heads(self, projection: keras.layers.Layer, x: Tensor, norm: str | None = None) -> Tensor:
        """Returns the heads of queries or keys (B, N, T, H) that a projection makes of tokens.

        Args:
            projection: layer of the heads.
            x: tokens (B, T, D).
            norm: "query" or "key", whose norm serves. Default: None, that of the projection's name.
        """
        heads = projections.heads_of(projection, x)
        norm = norm or projection.name
        return self.head_norms[norm](heads) if norm in self.head_norms else heads

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
            turned = rotate_both(self.position_encoding, query, query if key is None else key)
            known = with_choices(pattern, known, *turned, masks)
        return dense_pattern(pattern, call, query.shape[1], masks, known, self.attention_options(causal))

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

    @property
    def cross_cache_unsupported_reason(self) -> str | None:
        """Why the layer cannot decode with a cross-attention cache, as text; None if it can."""
        if self.must_be_causal:
            return f"{self.causal_part} is for causal self-attention alone"
        if self.share_qk:
            return "queries serve as keys"
        pattern = self.make_pattern(causal=False)
        return None if pattern.causal_selection else pattern.cache_unsupported_reason()

    def init_cross_cache(
        self,
        value: Tensor,
        key: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Cache:
        """Returns the keys and values of the other sequence, which are computed once and do not change.

        Args:
            value: float (B, S, D'), as in a call, likewise the others.
            key: float (B, S, D''). None: `value`.
            value_mask: bool (B, S). None: the mask that `value` carries.
            key_mask: bool (B, S), likewise.

        Returns:
            Dictionary of tensors: floats in the compute dtype, and what is masked.

        Raises:
            ValueError: if the layer has no cross-attention cache or is not built, and for arguments that do not fit.
        """
        check_has_cross_cache(self)
        if not self.built:
            raise ValueError(f"`{self.name}` must be built before it decodes: call it, or `build` it.")
        value, key = as_tensor(value), as_tensor(value if key is None else key)
        attention_checks.check_shapes(value.shape, value.shape, key.shape)
        sizes = (projection.kernel.shape[0] for projection in (self._value, self._key))  # type: ignore[union-attr]
        attention_checks.check_features(self.name, sizes, value=value.shape, key=key.shape)
        masks = mask_of_tokens("value_mask", value_mask, value), mask_of_tokens("key_mask", key_mask, key)
        mask = merge(*masks)
        mask = None if mask is None else ops.broadcast_to(mask, shape(value)[:2])
        value, key = zero_padding(value, mask), zero_padding(key, mask)
        key, value = self.project_heads(self._key, key), projections.heads_of(self._value, value)
        pattern = self.make_pattern(causal=False)
        check_length(pattern, "value", shape(value)[2])
        groups, key = describe_keys(self, pattern, key, key, mask)
        return cross_cache(self.plan_heads(pattern), key, value, mask, groups)

    def decode_cross(self, x: Tensor, cache: Cache, index: Size) -> Tensor:
        """Returns the result for one query a row.

        Args:
            x: float (B, 1, D).
            cache: what `init_cross_cache` returned.
            index: int32 () or (B,), the position of the query in its own sequence.

        Returns:
            The output (B, 1, D).

        Raises:
            ValueError: for a cache of another layer, and for an index that is no integer or less than 0.
        """
        check_has_cross_cache(self)
        check_pattern_entries(cache, self.plan_heads(self.make_pattern(causal=False)))
        check_index(x, index)
        index = ops.broadcast_to(ops.cast(index, "int32"), (shape(x)[0],))
        heads = self.decode_cross_attention(self.project_heads(self._query, x), cache, index)
        return self.join_heads(x, heads)

    def decode_cross_attention(self, query: Tensor, cache: Cache, index: Tensor) -> Tensor:
        """Returns attended heads (B, N, 1, Hv) of projected, unscaled ones (B, N, 1, H) at `index` int32 (B,)."""
        pattern = self.make_pattern(causal=False)
        groups = groups_of_leaves(self, pattern, query, index[:, None])
        query, _ = self.score_inputs(query, query)
        plans, options = self.plan_heads(pattern), self.attention_options(causal=False)
        return decode_cross_pattern(plans, cache, query, groups, index, options)

    def compute_output_shape(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> tuple[int | None, ...]:
        self._sequence_shapes(query_shape, value_shape, key_shape)  # check that the shapes agree
        return (*query_shape[:-1], *(self._output_sizes or (query_shape[-1],)))

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        **kwargs: Any,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:
        attention_checks.check_symbolic_call(self, value, key, use_causal_mask)
        sizes = self.compute_output_shape(query.shape, *(None if x is None else x.shape for x in (value, key)))
        return projections.output_spec(self, sizes, query, value, return_attention_scores)

    def compute_mask(self, query: Tensor, previous_mask: Tensor | None) -> Tensor | None:
        return previous_mask  # that of the query; weights that are returned carry none

    def get_config(self) -> Config:
        names: tuple[str, ...] = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "use_output_bias")
        names += ("position", "max_distance", "seed", "attention_axes")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "output_shape": self._output_sizes,
            **self.head_settings.config(),
            **projections.config_of(self._objects),
        }


def check_has_cache(layer: keras.layers.Layer) -> None:
    """Raises a `ValueError` for a layer or model that cannot decode with a cache."""
    if layer.cache_unsupported_reason is not None:
        raise ValueError(
            f"`{layer.name}` must be one that decodes with a cache: {layer.cache_unsupported_reason}. "
            "Generation without one computes the whole sequence for each token."
        )


def describe_keys(
    layer: keras.layers.Layer,
    pattern: Pattern,
    query: Tensor,
    key: Tensor | None,
    mask: Tensor | None = None,
    is_turned: bool = True,
) -> tuple[list[Any], Tensor]:
    """Returns `groups_of_sequence` of keys (B, M, S, H), and the keys as a cache holds them, turned by positions.

    Args:
        layer: an `AttentionLayer`.
        pattern: of the layer.
        query: the queries, which serve as keys where there are none.
        key: the keys, or None.
        mask: bool (B, S), False for keys that no query may see; or None.
        is_turned: whether positions turn the keys. Default True.
    """
    groups = groups_of_sequence(layer, pattern, query if key is None else key, mask)
    query, key = layer.score_inputs(query, key)
    key = query if key is None else key
    return groups, rotate_key(layer.position_encoding, key) if is_turned else key


def check_has_cross_cache(layer: keras.layers.Layer) -> None:
    """Raises a `ValueError` for a layer that cannot decode with a cross-attention cache."""
    if layer.cross_cache_unsupported_reason is not None:
        raise ValueError(
            f"`{layer.name}` must be one that decodes with a cross-attention cache: "
            f"{layer.cross_cache_unsupported_reason}. "
            "Call it with all queries at once."
        )
