"""What all attention layers share: arguments, projections, masks and the order of a call."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.deprecation import renamed_attributes
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.head_projections import HeadProjections
from tf_sparse_attention.layers.attention.pattern_heads import ProjectedHeads
from tf_sparse_attention.layers.data_parallel import SeedGenerator
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin
from tf_sparse_attention.layers.parts.head_settings import HeadSettings
from tf_sparse_attention.layers.parts.image_inputs import as_images, as_sequences, is_image, sequence_shape
from tf_sparse_attention.layers.parts.masks import normalize_self_attention, token_masks, zero_padding
from tf_sparse_attention.layers.parts.segment_memory import with_memory
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.types import Config, Constraint, Initializer, Regularizer, Shape, Tensor


@renamed_attributes(
    decode_across="decode_cross",
    further_masks="extra_mask_names",
    reason_against_cache="cache_unsupported_reason",
    reason_against_crossing="cross_cache_unsupported_reason",
)
class AttentionLayer(HeadProjections, AdaptableMixin, keras.layers.Layer):
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
