"""All-attention: a sliding window and persistent vectors in one softmax."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads
from tf_sparse_attention.layers.parts.adaptive_span import checked_span, computed_window, make_span, read_span
from tf_sparse_attention.ops.attend import Dropout, attend_persistent
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import NoPosition
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.ops.shapes import merge_heads, slice_axis, unmerge_heads
from tf_sparse_attention.patterns.engine.head_plans import AttentionOptions
from tf_sparse_attention.patterns.engine.kv_cache import Cache
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.selection import NewTokens
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Config, Shape, Tensor

VARIANTS = ("all", "split", "head_split", "single_head")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class AllAttention(AttentionLayer):
    """All-attention: attention to a window and to persistent vectors, without a feed-forward layer.

    Every head has `num_persistent` learned keys and values without position encodings, in the same softmax as the
    window. Cost O(T (window + M)). A block with this layer needs no feed-forward layer:
    `TransformerBlock(AllAttention(...))`, or a `Backbone` without `intermediate_dim`. Source: Sukhbaatar et al. 2019,
    "Augmenting self-attention with persistent memory", equation 9.

    If the whole window of a query is masked, the query attends only to the persistent vectors. Returned attention
    weights cover only the window.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_persistent: M, persistent vectors per head. 0 disables them.
        window: L, positions on each side of the query.
        mask_self: whether a query attends to the L positions before it but not to itself, as in the published code.
            Default False: a query attends to itself and to the L - 1 positions before it.
        variant: a variant of section 5.3. "all" (default): one softmax. "split": the window and the vectors have
            separate softmaxes, whose outputs are added. "head_split": the first half of the heads attends to the
            window, the second half to the vectors. "single_head": like "split", with one set of vectors for the
            concatenated heads.
        adaptive_span: as in `LocalAttention`. The spans limit only the window.
        **kwargs: the other arguments of `AttentionLayer`. With `position="relative"` only keys have a position table.

    Raises:
        ValueError: if an argument is invalid, or if the variant needs more heads or vectors.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = AllAttention(num_heads=4, key_dim=16, num_persistent=256, window=128, position="relative")
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        num_persistent: int,
        window: int,
        mask_self: bool = False,
        variant: str = "all",
        adaptive_span: bool | dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_choice("variant", variant, VARIANTS)
        self.variant = variant  # before `super().__init__`, which checks the heads
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_count("num_persistent", num_persistent, minimum=0)
        checks.check_count("window", window)
        checks.check_switch("mask_self", mask_self)
        if variant != "all" and num_persistent == 0:
            raise ValueError(f"`num_persistent` must be positive for variant={variant!r}. Received: num_persistent=0.")
        if variant == "head_split" and num_heads == 1:
            raise ValueError("`num_heads` must be at least 2 for variant='head_split'. Received: num_heads=1.")
        options = ("use_sink", "logit_soft_cap", "attention_scale")
        unsupported = [name for name in options if getattr(self.head_settings, name)]
        if variant != "all" and unsupported:
            raise ValueError(
                f"`{unsupported[0]}` must not be set unless `variant` is 'all'. Received: variant={variant!r}."
            )
        self.num_persistent = num_persistent
        self.window = window
        self.mask_self = mask_self
        self.adaptive_span = checked_span(adaptive_span, window)
        self.has_relative_values = False

    @property
    def pattern(self) -> Pattern:
        """The window. With `mask_self`, the window is one position longer, because the query's position is masked."""
        return Window(computed_window(self) + (1 if self.mask_self else 0))

    @property
    def num_pattern_heads(self) -> int:
        """The number of heads with a window."""
        return (self.num_heads + 1) // 2 if self.variant == "head_split" else self.num_heads

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        self.span = make_span(self, self.num_pattern_heads, first=1 if self.mask_self else 0)
        self.persistent = None
        if not self.num_persistent:
            return
        heads, concatenated = self.num_heads, 1
        if self.variant == "head_split":
            heads -= self.num_pattern_heads
        elif self.variant == "single_head":
            heads, concatenated = 1, self.num_heads
        sizes = heads, self.num_persistent, concatenated * self.key_dim, concatenated * self.value_dim
        self.persistent = PersistentVectors(*sizes, seed=self.seed, dtype=self.dtype_policy, name="persistent")

    @property
    def position_encoding(self) -> NoPosition:
        return super().position_encoding.slice_heads(slice(0, self.num_pattern_heads))

    def attention_options(self, training: bool = False) -> AttentionOptions:
        """Return the `AttentionOptions` of a call. In training, also add the span loss with `add_loss`."""
        persistent = self.persistent if self.variant == "all" else None
        options = super().attention_options()
        return options._replace(
            span=read_span(self, training),
            hide_self="always" if self.mask_self else None,
            persistent=None if persistent is None else persistent.read(),
        )

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        query, masks = heads[0], masks.slice_heads(slice(0, self.num_pattern_heads))
        output, weights = super().compute_attention(self._window_heads(heads), masks, causal, training, return_weights)
        return self._add_persistent(query, output, weights, Dropout.for_call(self.dropout, self._seeds, training))

    def extend_attention(self, heads: ProjectedHeads, cache: Cache, tokens: NewTokens) -> tuple[Tensor, Cache]:
        output, cache = super().extend_attention(self._window_heads(heads), cache, tokens)
        return self._add_persistent(heads[0], output)[0], cache

    def decode_cross_attention(self, query: Tensor, cache: Cache, positions: Tensor) -> Tensor:
        (window_query,) = self._window_heads((query,))
        output = super().decode_cross_attention(window_query, cache, positions)
        return self._add_persistent(query, output)[0]

    def dense_mask(self, heads: ProjectedHeads, masks: TokenMasks, causal: bool) -> Tensor:
        masks = masks.slice_heads(slice(0, self.num_pattern_heads))
        mask = super().dense_mask(self._window_heads(heads), masks, causal)
        num_others = self.num_heads - self.num_pattern_heads
        return ops.pad(mask, ((0, 0), (0, num_others), (0, 0), (0, 0))) if num_others else mask

    def _window_heads(self, heads: ProjectedHeads) -> ProjectedHeads:
        """Select the queries of the heads with a window."""
        return slice_axis(heads[0], -3, 0, self.num_pattern_heads), *heads[1:]

    def _add_persistent(
        self, query: Tensor, output: Tensor, weights: Tensor | None = None, dropout: Dropout | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to the persistent vectors of variants other than "all"."""
        if self.persistent is None or self.variant == "all":
            return output, weights
        persistent = self.persistent.read()
        if self.variant == "split":
            return output + attend_persistent(query * self.score_scale, persistent, dropout), weights
        if self.variant == "single_head":
            joined = merge_heads(query) * (self.num_heads * self.key_dim) ** -0.5
            return output + unmerge_heads(attend_persistent(joined, persistent, dropout), self.num_heads), weights
        others = slice_axis(query, -3, self.num_pattern_heads, self.num_heads) * self.score_scale
        output = ops.concatenate([output, attend_persistent(others, persistent, dropout)], axis=1)
        if weights is not None:
            weights = ops.pad(weights, ((0, 0), (0, self.num_heads - self.num_pattern_heads), (0, 0), (0, 0)))
        return output, weights

    def get_config(self) -> Config:
        names = ("num_persistent", "window", "mask_self", "variant", "adaptive_span")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


class PersistentVectors(keras.layers.Layer):
    """Learned keys and values of attention heads (Sukhbaatar et al. 2019, "Augmenting self-attention", section 4.1).

    Weights start with variance 1 / H (`key`) and 1 / M (`value`), and are scaled by sqrt(H) and sqrt(M) when read. So
    the vectors start with variance 1 and learn at the rate of the projections.

    Args:
        num_heads: N.
        count: M, vectors per head.
        key_dim: H, size of a key.
        value_dim: Hv, size of a value.
        seed: integer seed of the initial vectors. None: the seed of `keras.utils.set_random_seed`.
        **kwargs: `name`, `dtype`, `trainable`.
    """

    def __init__(
        self, num_heads: int, count: int, key_dim: int, value_dim: int, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.count = count
        self.key_dim = key_dim

        def make(name, size, fan, seed):
            normal = keras.initializers.RandomNormal(stddev=fan**-0.5, seed=seed)
            return self.add_weight(name=name, shape=(num_heads, count, size), initializer=normal)

        self.key = make("key", key_dim, key_dim, derived_seed(seed, 0))
        self.value = make("value", value_dim, count, derived_seed(seed, 1))
        self.built = True

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys (N, M, H) and values (N, M, Hv) in the compute dtype."""
        key, value = (ops.cast(weight, self.compute_dtype) for weight in (self.key, self.value))
        return key * self.key_dim**0.5, value * self.count**0.5
