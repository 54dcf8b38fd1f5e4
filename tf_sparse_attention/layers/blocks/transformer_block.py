"""One block of a Transformer: attention and feed-forward with residuals and norms."""

from typing import Any, Self

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.deprecation import renamed_attributes
from tf_sparse_attention.layers.attention.attention_cache import check_has_cache
from tf_sparse_attention.layers.attention.attention_checks import check_extra_masks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.cache_checks import check_entries
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.blocks.remat import remat_call
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin
from tf_sparse_attention.layers.parts.masks import implicit_mask
from tf_sparse_attention.layers.parts.sublayers import deserialize_unbuilt
from tf_sparse_attention.layers.replicas import SeedGenerator
from tf_sparse_attention.types import Config, Shape, Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@renamed_attributes(reason_against_cache="cache_unsupported_reason")
class TransformerBlock(AdaptableMixin, keras.layers.Layer):
    """Attention and feed-forward, each with a residual connection and a layer norm.

    pre: x + f(LN(x)). post: LN(x + f(x)), as in the published Routing Transformer. A block without feed-forward is the
    attention alone, as all-attention layers want it.

    Args:
        attention: an attention layer of this library.
        feed_forward: a layer (B, T, D) to (B, T, D), or None.
        norm: "pre" or "post". Default "pre".
        causal: whether later positions are hidden: passed on as `use_causal_mask`. Default False.
        dropout: rate in [0, 1) on the result of each sublayer before it is added, in training. Default 0.
        epsilon: of the layer norms, default 1e-6.
        remat: whether the backward pass computes the sublayers again rather than keep what is inside them: less
            memory, about a third more time. State and dropout seeds are updated once all the same. Default False.
        seed: integer for the dropout.
        **kwargs: `name`, `dtype`, `trainable`. The sublayers compute in their own dtypes, what is added to the inputs
            has that of the block.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), False for padding. None: the mask that `inputs` carries.
        attention_mask: as in `AttentionLayer`.
        segment_ids: int (B, T), as in `AttentionLayer`.
        memory: float (B, L, D), inputs of this block at the L positions before, see `AttentionLayer`.
        memory_segment_ids: int (B, L), likewise.
        training: whether to drop and to update state.
        **extra_masks: masks by name that the attention takes beside those of every layer, as "global_mask" of a
            `GlobalLocalAttention`.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: for a wrong argument, for a sublayer whose output has another size than its input, and in a call for
            a mask that the attention does not take.

    Example:
        >>> block = TransformerBlock(LocalAttention(4, 16, window=128), FeedForward(256), causal=True)
        >>> tuple(block(keras.random.normal((2, 300, 64))).shape)
        (2, 300, 64)
    """

    def __init__(
        self,
        attention: AttentionLayer | MixedAttention,
        feed_forward: keras.layers.Layer | None = None,
        norm: str = "pre",
        causal: bool = False,
        dropout: float = 0.0,
        epsilon: float = 1e-6,
        remat: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        _check_sublayers(attention, feed_forward)
        checks.check_choice("norm", norm, ("pre", "post"))
        checks.check_switch("causal", causal)
        _check_can_be_causal(attention, causal)
        checks.check_switch("remat", remat)
        checks.check_rate("dropout", dropout)
        checks.check_positive("epsilon", epsilon)
        checks.check_optional_count("seed", seed, minimum=0)
        self.supports_masking = True
        self.attention = attention
        self.feed_forward = feed_forward
        self.norm = norm
        self.causal = causal
        self.dropout = dropout
        self.epsilon = epsilon
        self.remat = remat
        self.seed = seed
        self._seeds = SeedGenerator(seed) if dropout > 0 else None

    def build(self, inputs_shape: Shape, **other_shapes: Shape | None) -> None:
        for layer in (self.attention, self.feed_forward):
            if layer is None:
                continue
            if not layer.built:
                layer.build(inputs_shape)
            found = tuple(layer.compute_output_shape(inputs_shape))
            if found != tuple(inputs_shape):
                raise ValueError(
                    "`attention` and `feed_forward` must return the shape they get, to be added to it. "
                    f"Received: {layer.name}, which makes {found} of {tuple(inputs_shape)}."
                )
        self._attention_norm = self._norm("attention_norm", inputs_shape)
        self._feed_forward_norm = None
        if self.feed_forward is not None:
            self._feed_forward_norm = self._norm("feed_forward_norm", inputs_shape)

    def _norm(self, name, inputs_shape):
        layer = keras.layers.LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name=name)
        layer.build(inputs_shape)
        return layer

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        memory: Tensor | None = None,
        memory_segment_ids: Tensor | None = None,
        training: bool | None = None,
        inputs_mask: Tensor | None = None,
        **extra_masks: Tensor | None,
    ) -> Tensor:
        # Keras hands over the mask of `inputs` as `mask` where they are the only tensor, else as `inputs_mask`.
        mask = inputs_mask if mask is None else mask
        mask = implicit_mask(inputs) if mask is None else mask
        given = {"query_mask": mask, "attention_mask": attention_mask, "segment_ids": segment_ids}
        if memory is not None:
            memory = self._attention_norm(memory) if self.norm == "pre" else memory
            given |= {"memory": memory, "memory_segment_ids": memory_segment_ids}
        check_extra_masks(self.attention, extra_masks)
        given |= {name: extra for name, extra in extra_masks.items() if extra is not None}

        def attend(x):
            return self._run(self.attention, x, training, use_causal_mask=self.causal, **given)

        x = self._residual(inputs, attend, self._attention_norm, training)
        if self.feed_forward is None:
            return x
        return self._residual(x, lambda x: self._run(self.feed_forward, x, training), self._feed_forward_norm, training)

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Why the block cannot decode with a cache, as text; None if it can."""
        return self.attention.cache_unsupported_reason if self.causal else "it sees later positions"

    def init_cache(
        self, batch_size: Size, max_length: Size, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> dict[str, Any]:
        """Returns the cache by the name of the attention; see `AttentionLayer.init_cache`, likewise the next two.

        A memory is inputs of this block, as in a call.
        """
        check_has_cache(self)
        if memory is not None and self.norm == "pre":
            memory = self._attention_norm(memory)
        return {self.attention.name: self.attention.init_cache(batch_size, max_length, memory, memory_mask)}

    def prefill(
        self, inputs: Tensor, cache: dict[str, Any], mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Returns the results (B, T, D) for a prompt and the cache after it."""
        return self._decoded(inputs, cache, lambda x, own: self.attention.prefill(x, own, mask))

    def decode(self, inputs: Tensor, cache: dict[str, Any], index: Size) -> tuple[Tensor, dict[str, Any]]:
        """Returns the result (B, 1, D) for the next token, and the cache after it."""
        return self._decoded(inputs, cache, lambda x, own: self.attention.decode(x, own, index))

    def _decoded(self, inputs, cache, attend):
        name, new = self.attention.name, {}
        check_entries(cache, [name])

        def attend_and_keep(x):
            output, new[name] = attend(x, cache[name])
            return output

        x = self._residual(inputs, attend_and_keep, self._attention_norm, training=False)
        if self.feed_forward is not None:
            x = self._residual(x, self.feed_forward, self._feed_forward_norm, training=False)
        return x, new

    def _residual(self, x, sublayer, norm, training):
        change = ops.cast(sublayer(norm(x) if self.norm == "pre" else x), x.dtype)
        if training and self._seeds is not None:
            change = keras.random.dropout(change, self.dropout, seed=self._seeds)
        return x + change if self.norm == "pre" else norm(x + change)

    def _run(self, layer, x, training, **arguments):
        call = remat_call if self.remat and training else type(layer).__call__
        return call(layer, x, training=training, **arguments)

    def compute_output_shape(self, inputs_shape: Shape, **other_shapes: Shape | None) -> Shape:
        return inputs_shape

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> Tensor | None:
        return previous_mask

    def get_config(self) -> Config:
        names = ("norm", "causal", "dropout", "epsilon", "remat", "seed")
        parts = {
            name: None if layer is None else keras.saving.serialize_keras_object(layer)
            for name, layer in (("attention", self.attention), ("feed_forward", self.feed_forward))
        }
        return {**super().get_config(), **parts, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        parts = {
            name: None if config[name] is None else deserialize_unbuilt(config[name])
            for name in ("attention", "feed_forward")
        }
        return cls(**{**config, **parts})


def _check_sublayers(attention, feed_forward):
    if not isinstance(attention, (AttentionLayer, MixedAttention)):
        raise ValueError(f"`attention` must be an attention layer of this library. Received: attention={attention!r}.")
    if feed_forward is not None and not isinstance(feed_forward, keras.layers.Layer):
        raise ValueError(f"`feed_forward` must be a Keras layer or None. Received: feed_forward={feed_forward!r}.")


def _check_can_be_causal(attention, causal):
    never = [part for part in getattr(attention, "parts", [attention]) if not part.can_be_causal]
    if causal and never:
        raise ValueError(
            f"`causal` must be False with {never[0].__class__.__name__} as it is made here, which cannot hide later "
            "positions. Received: causal=True."
        )
