"""Base class of attention layers: arguments, projections, masks, pattern attention, and decoding with a KV cache."""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.data_parallel import SeedGenerator
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin
from tf_sparse_attention.layers.parts.call_inputs import (
    as_images,
    as_sequences,
    as_tensor,
    is_image,
    normalize_self_attention,
    sequence_shape,
    token_mask,
    token_masks,
    zero_padding,
)
from tf_sparse_attention.layers.parts.head_settings import HeadSettings, gated, make_gate, make_norms, make_sinks
from tf_sparse_attention.layers.parts.segment_memory import add_memory, memory_keys
from tf_sparse_attention.layers.parts.selectors import find_layers, make_select, make_selectors
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.autograph import without_autograph
from tf_sparse_attention.ops.masks import TokenMasks, merge
from tf_sparse_attention.ops.positions import NoPosition, make_position, rotate_key, rotate_query_and_key
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.patterns.engine.attention import attend_pattern, dense_pattern
from tf_sparse_attention.patterns.engine.decoding import cross_cache, decode_cross_pattern, extend_pattern
from tf_sparse_attention.patterns.engine.head_plans import AttentionOptions, HeadPlan, plan_heads
from tf_sparse_attention.patterns.engine.kv_cache import (
    LONGEST,
    NUM_TOKENS,
    STREAMING,
    Cache,
    empty_cache,
    fill_cache,
    fill_memory,
    removable_tokens,
    rewind_cache,
)
from tf_sparse_attention.patterns.pattern import Call, Pattern, cache_unsupported_reason
from tf_sparse_attention.patterns.selection import NewTokens, SelectionInputs, Selector
from tf_sparse_attention.types import Config, Constraint, Initializer, Regularizer, Shape, Size, Tensor

# Queries (B, N, T, H), keys (B, M, S, H) or None where queries are used as keys, and values (B, M, S, Hv). Subclasses
# may append more.
ProjectedHeads: TypeAlias = tuple[Any, ...]


class AttentionLayer(AdaptableMixin, keras.layers.Layer):
    """Base class of attention layers, with the constructor and call signatures of `keras.layers.MultiHeadAttention`.

    A subclass sets `self._pattern` in its constructor, or overrides the property `pattern`. Attention, the dense
    reference mask and decoding follow from the pattern. A layer without a pattern (`ClusteredAttention`) overrides
    `compute_attention` and `dense_mask`.

    Projections have the same names, shapes and order as in Keras. `set_weights` accepts the weights of a Keras layer.
    `load_weights` reads weight files of Keras models with the same layer names.

    Note: differs from `keras.layers.MultiHeadAttention` as follows.

    - Inputs have rank 3 (sequences) or 4 (images). `attention_axes` must be None, (1,) for sequences or (1, 2) for
      images.
    - Kernels are selected automatically: `flash_attention` must be None or False.
    - `sliding_window` must be None, except in `LocalAttention` and `GlobalLocalAttention`, which store it as `window`.
    - Masks are boolean or integer; floating-point masks raise an error.
    - The attention output of a padded query, before the output projection, is zero.
    - Constructor arguments after `key_dim` should be passed by name, because their order differs.
    - `compute_attention` is the method to override instead of `_compute_attention`.

    Decoding adds three methods: `init_cache`; `extend`, which adds tokens, such as a prompt or a single token; and
    `rewind`, which removes the last tokens. A cache is a dictionary of tensors with fixed shapes, as `while_loop`
    requires. The pattern's cache policy decides which keys and values the cache keeps. "num_tokens", int32 (B,), is the
    number of tokens per row. The outputs equal the outputs of one causal call on the whole sequence, without dropout.
    Compiled programs cannot raise errors that depend on tensor values. Instead, the output of the row is NaN. If a row
    has padding on the left or too many tokens for the cache, its "num_tokens" becomes -1, and all its later outputs are
    NaN.

    Cross-attention decoding has two methods: `init_cross_cache` computes keys and values of the source sequence once,
    and `decode_cross` attends to them. The outputs equal `layer(x, value, key)` without a causal mask.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        value_dim: Hv, size of each head for values. None: `key_dim`.
        dropout: dropout rate of attention weights, in [0, 1). Default 0.
        use_bias: whether projections have biases. Default True.
        use_output_bias: whether the output projection has a bias. None: `use_bias`. In `MixedAttention`, only the first
            part has an output bias.
        output_shape: sizes of the output's last axes, an integer or a tuple. None: the size of the query's last axis.
        position: None, "relative" (learned tables, Shaw et al. 2018), "rotary" (`key_dim` must be even) or "alibi".
        max_distance: largest distance in the tables of "relative"; larger distances are clipped. None: the `reach` of
            the pattern.
        kernel_initializer: initializer of projection kernels and position tables. `bias_initializer`,
            `kernel_regularizer`, `bias_regularizer`, `activity_regularizer`, `kernel_constraint` and `bias_constraint`
            are also as in Keras.
        seed: integer seed of dropout and random state. None: a new seed per layer.
        num_key_value_heads: M, key and value heads, each shared by N / M consecutive query heads (grouped-query
            attention, Ainslie et al. 2023). In content-based layers, each key head has its own centroids or hash
            directions. None: N.
        attention_scale: factor applied to q . k. None: the default of the layer, mostly 1 / sqrt(key_dim).
        logit_soft_cap: cap c: a scaled score x becomes c tanh(x / c). Position biases are added afterwards. None: no
            cap.
        use_sink: whether each head has an attention sink, a learned logit without a value, as in gpt-oss. Default
            False.
        use_query_key_norm: whether queries and keys are RMS-normalized with a learned scale per channel, before rotary
            positions. Default False. `query_key_norm_epsilon`, default 1e-6, is added to the mean square.
        use_value_norm: whether values are RMS-normalized, without a scale, as in Gemma 3n and 4. Default False.
        alibi_slopes: slope of "alibi" per head, a sequence of N positive numbers. None: the published slopes.
        use_gate: whether the attention output of each head is multiplied by a sigmoid gate computed from the query, as
            in Keras (Qiu et al. 2025, arXiv 2505.06708). Default False.
        rotary_max_wavelength: base of the frequencies of "rotary", default 10000. `rotary_type` ("linear", "dynamic",
            "yarn", "llama3" or "longrope") and `rotary_scaling_factor` set the frequency scaling. `rotary_dim` is the
            number of rotated channels per head. These and further "rotary_" arguments are the fields of
            `ops.positions.RotarySettings`.
        **kwargs: `num_key_value_heads` and the arguments after it in this list; also `name`, `dtype` and `trainable`.

    Call arguments:
        query: float (B, T, D), or images (B, height, width, D), flattened row by row to T = height * width tokens.
            Masks and segment ids of images may have shape (B, height, width). `value` and `key` may be images, too.
        value: float (B, S, D'). None or `query` itself: self-attention.
        key: float (B, S, D''). None: `value`.
        query_mask: bool (B, T), False for padding. Attention outputs of padding are zero. In self-attention, the mask
            also applies to keys. None: the mask that `query` carries, if any. Values at padding, including NaN, change
            neither results nor gradients.
        value_mask: bool (B, S), False for padding. No query attends to padding. None: the mask that `value` carries.
        key_mask: bool (B, S), False for padding. None: the mask that `key` carries.
        attention_mask: bool of rank 2 (T, S), 3 (B, T, S) or 4, broadcastable to (B, N, T, S). A mask of rank 2
            triggers a warning if B = T, because it could be a padding mask.
        return_attention_scores: whether to also return the weights (B, N, T, S), in O(T S) memory.
        training: whether to apply dropout and update state.
        use_causal_mask: whether later positions are masked.
        segment_ids: int (B, T), the document of each token of a packed batch. Each document is one run of a distinct
            id, and tokens attend within their document.
        value_segment_ids: int (B, S), the document of each key of another sequence, used with `segment_ids`. None:
            `segment_ids`, for sequences of equal length.
        memory: float (B, L, D), inputs at the L positions before the query (Transformer-XL segment memory), for
            self-attention of layers whose pattern has `takes_memory`. The memory has no gradient, and `attention_mask`
            does not apply to it.
        memory_segment_ids: int (B, L), the documents of the memory, -1 for empty positions. Without `segment_ids`, all
            tokens of the query belong to document 0. None: all positions of the memory are visible; allowed only
            without `segment_ids`.
        mask: same as `query_mask`. Keras passes the mask of a single `query` under this name.

    Returns:
        Float (B, T, D) or (B, height, width, D), or the pair of output and weights. If all keys of a query are masked,
        its output is the bias of the output projection.

    Raises:
        ValueError: if an argument has an invalid type, shape or length, or T = 0.
    """

    position_kinds: tuple[str | None, ...] = (None, "relative", "rotary", "alibi")
    share_qk = False  # whether queries are used as keys, so that there is no key projection

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
        self.head_settings = HeadSettings.pop_from(kwargs)
        attention_checks.check_arguments(self, arguments)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.num_key_value_heads = self.head_settings.num_key_value_heads
        self.num_key_heads = self.num_key_value_heads or self.num_pattern_heads
        self.key_dim = key_dim
        self.value_dim = key_dim if value_dim is None else value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.position = position
        self.max_distance = max_distance
        self.seed = seed
        self.use_output_bias = use_bias if use_output_bias is None else use_output_bias
        self._output_sizes = attention_checks.checked_sizes(output_shape)
        self._objects = projections.resolve_objects(arguments)
        self._seeds = SeedGenerator(seed) if dropout > 0 else None
        scale = self.head_settings.attention_scale
        self.score_scale = key_dim**-0.5 if scale is None else scale
        self.extra_mask_names: tuple[str, ...] = ()  # masks by name that `add_extra_masks` accepts
        self.mask_self: bool | None = False  # None: `share_qk`
        self.has_relative_values = True  # whether position "relative" has a table for values
        self.head_settings.check_for(self)

    @property
    def pattern(self) -> Pattern:
        """The `tsa.patterns` pattern of the heads. None for `ClusteredAttention`."""
        if not hasattr(self, "_pattern"):
            raise NotImplementedError(f"{type(self).__name__} must define `pattern`.")
        return self._pattern

    @property
    def num_pattern_heads(self) -> int:
        """The number of heads that attend to the sequence."""
        return self.num_heads

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        query_shape, value_shape, key_shape = _sequence_shapes(self, query_shape, value_shape, key_shape)
        self.head_settings.check_for(self)  # again: a subclass may have set `share_qk` after `__init__`
        self.num_features = query_shape[-1]
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
        # Weight files name a layer by its attribute. `MultiHeadAttention` saves `query_dense` and its siblings, which
        # are public in Keras, `GroupQueryAttention` saves `_query_dense`.
        self.query_dense = self._query_dense = self._query
        self.key_dense = self._key_dense = self._key
        self.value_dense = self._value_dense = self._value
        self.output_dense = self._output_dense = self._attention_output
        self.head_norms = make_norms(self)
        self.head_sinks = make_sinks(self)
        if self.position == "relative":
            num_rows = 2 * (self.max_distance or max(self.pattern.reach or 0, 1)) + 1
            self._relative_key, self._relative_value = projections.relative_tables(self, num_rows, self._objects)
        self.selectors = self.make_selectors()
        self._groupers = find_layers(self.selectors)

    def make_selectors(self) -> list[Selector | None]:
        """Create the selector of each primitive pattern, None for patterns that are not content-based."""
        return make_selectors(self, head_plans(self))

    def copy_projections(self, attention: keras.layers.Layer, heads: slice = slice(None)) -> None:
        """Copy the projection weights of a built attention layer of Keras or of this library.

        Args:
            attention: `keras.layers.MultiHeadAttention`, `keras.layers.GroupQueryAttention`, or a layer with the
                sublayers `query`, `key`, `value`, `attention_output` and optionally `gate`.
            heads: slice of the heads of `attention` to copy. Default: all.

        Raises:
            ValueError: if `attention` is not built, or a projection is missing or has another shape.
        """
        projections.copy(attention, self, heads)

    @without_autograph
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
        attention_checks.check_call(self, value, key, use_causal_mask)
        attention_checks.check_inputs(self, query, value, key)
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
        if memory is not None:
            masks, value = add_memory(self, masks, query, value, memory, memory_segment_ids)
        heads = self.project(query, value, key)
        return self.attend(query, heads, masks, use_causal_mask, bool(training), return_attention_scores)

    def add_extra_masks(self, masks: TokenMasks, query: Tensor) -> TokenMasks:
        """Add the masks with names in `extra_mask_names` to the `TokenMasks` of a call."""
        return masks

    def project(self, query: Tensor, value: Tensor | None = None, key: Tensor | None = None) -> ProjectedHeads:
        """Project inputs to per-head queries, keys and values (B, N, T, H).

        Keys are None if queries are used as keys.
        """
        value = query if value is None else value
        keys = None if self.share_qk else self.project_heads(self._key, value if key is None else key)
        return self.project_heads(self._query, query), keys, self.project_values(self._value, value)

    def project_heads(self, projection: keras.layers.Layer, x: Tensor, norm: str | None = None) -> Tensor:
        """Project tokens to per-head queries or keys, and normalize them if `use_query_key_norm` is True.

        Args:
            projection: a projection of the layer.
            x: tokens (B, T, D).
            norm: "query" or "key", the norm to apply. None: use the name of `projection`.

        Returns:
            Heads (B, N, T, H).
        """
        heads = projections.heads_of(projection, x)
        norm = norm or projection.name
        return self.head_norms[norm](heads) if norm in self.head_norms else heads

    def project_values(self, projection: keras.layers.Layer, x: Tensor) -> Tensor:
        """Project tokens (B, T, D) to values (B, M, T, Hv), and normalize them if `use_value_norm` is True."""
        values, settings = projections.heads_of(projection, x), self.head_settings
        if not settings.use_value_norm:
            return values
        return ops.rms_normalization(values, axis=-1, epsilon=settings.query_key_norm_epsilon)

    def attend(
        self,
        query: Tensor,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool,
        return_weights: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the output, and optionally the weights, from a query (B, T, D), projected heads and masks."""
        output, weights = self.compute_attention(heads, masks, causal, training, return_weights)
        if masks.query_mask is not None:
            exists = masks.query_mask[:, None, :, None]
            output = ops.where(exists, output, 0)
            weights = None if weights is None else ops.where(exists, weights, 0)
        output = _join_heads(self, query, output)
        return (output, weights) if return_weights else output

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention of projected heads.

        Args:
            heads: result of `project`: unscaled queries (B, N, T, H); keys (B, M, S, H), or None if queries are used as
                keys; values (B, M, S, Hv).
            masks: a `TokenMasks`. The caller applies `query_mask` to the result.
            causal: whether later positions are masked.
            training: whether to apply dropout and update state.
            return_weights: whether to return the weights.

        Returns:
            Pair of the attention output per head (B, N, T, Hv) and the weights (B, N, T, S) or None.
        """
        if causal and not self.pattern.causal_selection:
            attention_checks.warn_once(
                self,
                "under a causal mask is not causal: its keys are selected from the whole sequence. Use a pattern such "
                "as Nearest, selection='nearest' of RoutingAttention or selection='band' of LSHAttention.",
            )
        query, key, value = heads
        attended = attend_pattern(
            self.pattern,
            *self.score_inputs(query, key),
            value,
            causal=causal,
            masks=masks,
            select=make_select(self, query, key, masks, training) if any(self.selectors) else None,
            dropout=Dropout.for_call(self.dropout, self._seeds, training),
            return_weights=return_weights,
            options=self.attention_options(training),
        )
        return attended.output, attended.weights

    def score_inputs(self, query: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Apply the attention scale to queries and keys. `key` is None if queries are used as keys."""
        if key is None:  # both sides of the scores are the same rows, so each has half of the scale
            return query * self.score_scale**0.5, None
        return query * self.score_scale, key

    @property
    def position_encoding(self) -> NoPosition:
        """The position encoding, an object of `ops.positions`."""
        tables = (self._relative_key, self._relative_value) if self.position == "relative" else (None, None)
        return make_position(
            self.position, self.num_heads, *tables, self.head_settings.rotary, self.head_settings.alibi_slopes
        )

    def attention_options(self, training: bool = False) -> AttentionOptions:
        """Return the `AttentionOptions` of a call."""
        hides = self.share_qk if self.mask_self is None else self.mask_self
        return AttentionOptions(
            self.position_encoding,
            hide_self="unless_alone" if hides else None,
            soft_cap=self.head_settings.logit_soft_cap,
            sinks=None if self.head_sinks is None else ops.convert_to_tensor(self.head_sinks),
        )

    @without_autograph
    def attention_pattern(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        use_causal_mask: bool = False,
        **masks: Tensor | None,
    ) -> Tensor:
        """Compute the dense reference mask of a call, for tests and plots, in O(T S) memory.

        Args:
            query, value, key, use_causal_mask: as in a call.
            **masks: masks of a call: `query_mask`, `value_mask`, `key_mask`, `attention_mask`, `segment_ids` and
                `value_segment_ids`.

        Returns:
            Bool (B, N, T, S), True where a query attends to a key.

        Raises:
            ValueError: as in a call, and for a mask that the layer does not accept.
        """
        value, key = normalize_self_attention(query, value, key)
        if any(map(is_image, (query, value, key))):
            return self.attention_pattern(
                **as_sequences(self, query, value, key, **masks), use_causal_mask=use_causal_mask
            )
        attention_checks.check_call(self, value, key, use_causal_mask)
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
        """Compute the dense reference mask of projected heads, bool broadcastable to (B, N, T, S)."""
        query, key, pattern = *heads[:2], self.pattern
        select = make_select(self, query, key, masks)
        query, key = self.score_inputs(query, key)
        key = query if key is None else key
        call = Call.from_inputs(pattern, query, key, causal, masks)
        selections = select(*rotate_query_and_key(self.position_encoding, query, key), head_plans(self))
        return dense_pattern(pattern, call, query.shape[1], masks, selections, self.attention_options())

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Reason why the layer cannot decode with a KV cache, or None."""
        if not attention_checks.can_be_causal(self):
            return f"{type(self).__name__} cannot mask later positions"
        return cache_unsupported_reason(self.pattern)

    @without_autograph
    def init_cache(
        self,
        batch_size: Size,
        max_length: Size | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        positions_in_cache: bool = False,
        rewind: int = 0,
        dtype: str | None = None,
    ) -> Cache:
        """Create an empty cache.

        Args:
            batch_size: B, an integer or a scalar tensor.
            max_length: maximum number of tokens per sequence, an integer, or in a graph a scalar tensor. None: any
                number up to 2^30, for patterns with a bounded cache, such as a window or `Window(w) | First(n)`.
            memory: float (B, L, D), inputs at the L positions before the first token, as in a call. The first token
                keeps position 0. None: no memory.
            memory_mask: bool (B, L), False for empty positions and other documents. None: all are visible.
            positions_in_cache: whether RoPE uses the position in the cache instead of the position in the sequence, as
                in StreamingLLM (Xiao et al. 2024). Allowed for `Window(w)` and `Window(w) | First(n)`. Distances then
                stay below the size of the cache. Sequences longer than the cache give different results than a call.
                Default False.
            rewind: number of last tokens that `rewind` can remove if the cache overwrites old tokens, as for a window.
                Most other caches allow to remove all tokens. Default 0.
            dtype: dtype of keys and values. None: the compute dtype. "int8": quantized, with a float32 scale per head
                and slot. Default None.

        Returns:
            Dictionary of tensors: keys and values in the compute dtype or in int8 with scales, int32 counters, and the
            memory mask, if any.

        Raises:
            ValueError: if the layer is not built or cannot decode with a cache, if it does not accept the memory, or if
                its pattern needs `max_length` or does not allow `positions_in_cache`.
        """
        check_has_cache(self)
        if not self.built:
            raise ValueError(f"`{self.name}` must be built before it decodes. Received: a layer that is not built.")
        plans = head_plans(self)
        if max_length is None:
            max_length = attention_checks.unbounded_length(self, plans)
        for name, size in (("batch_size", batch_size), ("max_length", max_length)):
            if not ops.is_tensor(size):
                checks.check_count(name, size)
        checks.check_count("rewind", rewind, minimum=0)
        checks.check_choice("dtype", dtype, (None, "int8"))
        length = max_length if memory is None else max_length + shape(memory)[1]
        cache = empty_cache(
            plans,
            batch_size,
            (self.key_dim, self.value_dim),
            length,
            self.compute_dtype,
            self.selectors,
            rewind,
            is_quantized=dtype == "int8",
        )
        if memory is not None:
            cache = fill_memory(cache, *memory_keys(self, memory, memory_mask, batch_size))
        cache |= self.init_extra_entries(cache, batch_size, rewind)
        cache[NUM_TOKENS] = ops.zeros((batch_size,), dtype="int32")
        if positions_in_cache:
            attention_checks.check_streaming(self, plans, memory)
            cache[STREAMING] = ops.zeros((batch_size,), dtype="int32")
        if rewind:
            cache[LONGEST] = ops.zeros((batch_size,), dtype="int32")
        return cache

    def init_extra_entries(self, cache: Cache, batch_size: Size, rewind: int) -> Cache:
        """Return further entries of an empty cache, for layers that keep more than keys and values."""
        return {}

    @without_autograph
    def extend(
        self,
        x: Tensor,
        cache: Cache,
        mask: Tensor | None = None,
        index: Size | None = None,
        num_kept: Size | None = None,
    ) -> tuple[Tensor, Cache]:
        """Compute the output for the next tokens of each row, and add them to the cache.

        Args:
            x: float (B, q, D), the next q >= 1 tokens of each row, such as a prompt.
            cache: result of `init_cache` or of this method.
            mask: bool (B, q), False for padding, which must be on the right. Padding is not added. None: no padding.
            index: int32 () or (B,), the expected number of tokens in the cache. None: not checked. The integer 0: all
                rows are empty, so compiled programs compute the tokens as in a call, without reading the cache. In a
                tensor, -1 marks rows without a new token: their output is NaN, and their cache stays unchanged.
            num_kept: int32 () or (B,), maximum number of leading tokens per row to add. None: all except padding.

        Returns:
            Pair of the output (B, q, D), arbitrary at padding, and the cache after the tokens.

        Raises:
            ValueError: if the cache belongs to another layer or batch size, if padding is on the left, if `index` is
                not the number of tokens in the cache, or if the cache cannot hold the tokens.

        Example:
            >>> layer = LocalAttention(num_heads=2, key_dim=8, window=16)
            >>> layer.build((None, None, 32))
            >>> cache = layer.init_cache(batch_size=1, max_length=100)
            >>> y, cache = layer.extend(keras.random.normal((1, 60, 32)), cache)  # a prompt
            >>> y, cache = layer.extend(keras.random.normal((1, 1, 32)), cache)  # the next token
        """
        check_has_cache(self)
        checks.check_dense("x", x)
        checks.check_static("x", x.shape, ((None,), (None,), (self.num_features,)))
        masks = token_masks(x, None, None, mask, num_heads=self.num_heads)
        plans = head_plans(self)
        tokens, is_valid, num_tokens, is_first = attention_checks.check_extension(
            self, plans, cache, x, masks.query_mask, index, num_kept
        )
        x = zero_padding(x, masks.query_mask)
        heads = self.project(x)
        if is_first and STREAMING not in cache:
            output = self.attend(x, heads, masks, causal=True, training=False, return_weights=False)
            cache = self.fill_attention(heads, cache, tokens)
        else:
            attended, cache = self.extend_attention(heads, cache, tokens)
            output = _join_heads(self, x, attended)
        if is_valid is not None:
            output = ops.where(is_valid[:, None, None], output, float("nan"))
        counted = {NUM_TOKENS: num_tokens}
        if LONGEST in cache:
            counted[LONGEST] = ops.maximum(cache[LONGEST], num_tokens)
        return output, {**cache, **counted}

    @without_autograph
    def rewind(self, cache: Cache, lengths: Size) -> Cache:
        """Remove the last tokens of each row from the cache.

        Args:
            cache: result of `extend`.
            lengths: int32 () or (B,), number of tokens to keep.

        Returns:
            The cache, from which `extend` continues.

        Raises:
            ValueError: if the cache belongs to another layer; in eager mode, if `lengths` is negative or larger than
                the number of cached tokens, or if overwritten tokens are needed. In compiled programs, "num_tokens" of
                the row becomes -1.
        """
        check_has_cache(self)
        plans = head_plans(self)
        attention_checks.check_cache(self, plans, cache)
        lengths, num_tokens = attention_checks.check_rewind(self, cache, lengths)
        return {**self.rewind_attention(cache, lengths), NUM_TOKENS: num_tokens}

    def removable_tokens(self, cache: Cache, longest: Tensor) -> list[Tensor]:
        """Return limits of the number of tokens that `rewind` can remove, each int32 (B,).

        Args:
            cache: the cache of the layer.
            longest: int32 (B,), the largest number of tokens that each row has had.
        """
        return removable_tokens(head_plans(self), cache, longest)

    def rewind_attention(self, cache: Cache, lengths: Tensor) -> Cache:
        """Return the cache without the tokens from position `lengths` (B,) on."""
        return rewind_cache(head_plans(self), cache, self.selectors, lengths)

    def fill_attention(self, heads: ProjectedHeads, cache: Cache, tokens: NewTokens) -> Cache:
        """Add new tokens to the cache without computing attention.

        Args:
            heads: result of `project`.
            cache: the cache before the tokens.
            tokens: the `NewTokens`.
        """
        query, key, value = heads[:3]
        scaled, scaled_key = self.score_inputs(query, key)
        position, at = self.position_encoding, tokens.positions[:, None]
        rotated = position.rotate(scaled, at)
        rotated_key = rotated if scaled_key is None else position.rotate(scaled_key, at)
        inputs = SelectionInputs(query, query if key is None else key, rotated, rotated_key)
        return fill_cache(head_plans(self), cache, value, self.selectors, inputs, tokens)

    def extend_attention(self, heads: ProjectedHeads, cache: Cache, tokens: NewTokens) -> tuple[Tensor, Cache]:
        """Compute attention for new tokens, and add them to the cache.

        Args:
            heads: result of `project`.
            cache: the cache before the tokens.
            tokens: the `NewTokens`.

        Returns:
            Pair of the attention output per head (B, N, q, Hv) and the cache after the tokens.
        """
        query, key, value = heads[:3]
        compared = query, query if key is None else key
        query, key = self.score_inputs(query, key)
        key = query if key is None else key
        plans, options, farthest = head_plans(self), self.attention_options(), None
        if STREAMING in cache:
            farthest = sum(attention_checks.streaming_sizes(self, plans)) - 1
        return extend_pattern(plans, cache, query, key, value, self.selectors, compared, tokens, options, farthest)

    @property
    def cross_cache_unsupported_reason(self) -> str | None:
        """Reason why the layer cannot decode with a cross-attention cache, or None."""
        if self.pattern.must_be_causal:
            return f"{attention_checks.describe_pattern(self, 'must_be_causal')} requires causal self-attention"
        if self.share_qk:
            return "queries are used as keys"
        return None if self.pattern.causal_selection else cache_unsupported_reason(self.pattern)

    @without_autograph
    def init_cross_cache(
        self,
        value: Tensor,
        key: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Cache:
        """Create a cache of the keys and values of the source sequence.

        Args:
            value: float (B, S, D').
            key: float (B, S, D''). None: `value`.
            value_mask: bool (B, S). None: the mask that `value` carries.
            key_mask: bool (B, S). None: the mask that `key` carries.

        Returns:
            Dictionary of tensors: floats in the compute dtype, and masks. Decoding does not change them.

        Raises:
            ValueError: if the layer is not built or has no cross-attention cache, or if arguments do not match.
        """
        check_has_cross_cache(self)
        if not self.built:
            raise ValueError(f"`{self.name}` must be built before it decodes. Received: a layer that is not built.")
        value, key = as_tensor(value), as_tensor(value if key is None else key)
        attention_checks.check_shapes(value.shape, value.shape, key.shape)
        sizes = (projection.kernel.shape[0] for projection in (self._value, self._key))  # type: ignore[union-attr]
        attention_checks.check_features(self.name, sizes, value=value.shape, key=key.shape)
        masks = token_mask("value_mask", value_mask, value), token_mask("key_mask", key_mask, key)
        mask = merge(*masks)
        mask = None if mask is None else ops.broadcast_to(mask, shape(value)[:2])
        value, key = zero_padding(value, mask), zero_padding(key, mask)
        key, value = self.project_heads(self._key, key), self.project_values(self._value, value)
        _, scaled = self.score_inputs(key, key)
        rotated = rotate_key(self.position_encoding, scaled)
        return cross_cache(head_plans(self), rotated, value, mask, self.selectors, key)

    @without_autograph
    def decode_cross(self, x: Tensor, cache: Cache, index: Size) -> Tensor:
        """Compute the cross-attention output for consecutive queries of each row.

        Args:
            x: float (B, q, D).
            cache: result of `init_cross_cache`.
            index: int32 () or (B,), the position of the first query in its sequence.

        Returns:
            The output (B, q, D).

        Raises:
            ValueError: if the cache belongs to another layer, or `index` is negative or not an integer.
        """
        check_has_cross_cache(self)
        attention_checks.check_pattern_entries(cache, head_plans(self))
        attention_checks.check_index(x, index)
        batch, length = shape(x)[:2]
        positions = ops.broadcast_to(ops.cast(index, "int32"), (batch,))[:, None]
        if x.shape[1] != 1:
            positions = positions + ops.arange(length, dtype="int32")
        heads = self.decode_cross_attention(self.project_heads(self._query, x), cache, positions)
        return _join_heads(self, x, heads)

    def decode_cross_attention(self, query: Tensor, cache: Cache, positions: Tensor) -> Tensor:
        """Compute cross-attention of queries (B, N, q, H) at `positions` (B, q). Returns (B, N, q, Hv)."""
        scaled, _ = self.score_inputs(query, query)
        plans, options = head_plans(self), self.attention_options()
        return decode_cross_pattern(plans, cache, scaled, self.selectors, query, positions, options)

    def compute_output_shape(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> tuple[int | None, ...]:
        _sequence_shapes(self, query_shape, value_shape, key_shape)  # check that the shapes agree
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
        attention_checks.check_call(self, value, key, use_causal_mask)
        sizes = self.compute_output_shape(query.shape, *(None if x is None else x.shape for x in (value, key)))
        return projections.output_spec(self, sizes, query, value, return_attention_scores)

    def get_config(self) -> Config:
        names: tuple[str, ...] = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "use_output_bias")
        names += ("position", "max_distance", "seed", "attention_axes")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "output_shape": self._output_sizes,
            **self.head_settings.config(),
            **projections.serialize_objects(self._objects),
        }


def _sequence_shapes(
    layer: keras.layers.Layer, query_shape: Shape, value_shape: Shape | None, key_shape: Shape | None
) -> list[Shape]:
    """Return the shapes (B, T, D) of the inputs of a call, with images as sequences of their pixels."""
    value_shape = query_shape if value_shape is None else value_shape
    key_shape = value_shape if key_shape is None else key_shape
    shapes = [sequence_shape(layer, sizes) for sizes in (query_shape, value_shape, key_shape)]
    attention_checks.check_shapes(*shapes)
    return shapes


def _join_heads(layer: Any, query: Tensor, heads: Tensor) -> Tensor:
    """Compute the output (B, T, D) from the query (B, T, D) and its attended heads (B, N, T, Hv)."""
    if layer._gate_dense is not None:
        heads = gated(layer._gate_dense, query, heads)
    return projections.join_heads(layer._attention_output, heads)


def head_plans(layer: Any, pattern: Pattern | None = None) -> list[HeadPlan]:
    """Return the `HeadPlan` of each set of heads of a pattern. Default: the pattern of the layer."""
    return plan_heads(layer.pattern if pattern is None else pattern, layer.num_pattern_heads, layer.num_key_heads)


def check_has_cache(layer: keras.layers.Layer) -> None:
    """Raise a `ValueError` for a layer or model that cannot decode with a KV cache."""
    if layer.cache_unsupported_reason is not None:
        raise ValueError(
            f"`{layer.name}` must be one that decodes with a cache: {layer.cache_unsupported_reason}. "
            "Generation without a cache computes the whole sequence for each token."
        )


def check_has_cross_cache(layer: keras.layers.Layer) -> None:
    """Raise a `ValueError` for a layer that cannot decode with a cross-attention cache."""
    if layer.cross_cache_unsupported_reason is not None:
        raise ValueError(
            f"`{layer.name}` must be one that decodes with a cross-attention cache: "
            f"{layer.cross_cache_unsupported_reason}. Call it with all queries at once."
        )
