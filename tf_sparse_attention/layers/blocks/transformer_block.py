"""Transformer block: attention and feed-forward layers with residual connections and norms."""

from typing import Any, Self, TypeAlias

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_checks import (
    can_be_causal,
    check_entries,
    check_extra_masks,
    check_source,
    name_with_leaf,
    warn_once,
)
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, check_has_cache
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.attention.routing_attention import OF_ALL_TOKENS, RoutingAttention
from tf_sparse_attention.layers.data_parallel import SeedGenerator
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin
from tf_sparse_attention.layers.parts.call_masks import (
    finite_padding,
    hide_from_attention,
    implicit_mask,
    mask_of_tokens,
)
from tf_sparse_attention.layers.parts.variables import deserialize_unbuilt
from tf_sparse_attention.types import Config, Shape, Size, Tensor

SUBLAYERS = ("attention", "cross_attention", "feed_forward")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class TransformerBlock(AdaptableMixin, keras.layers.Layer):
    """Transformer block: attention, optional cross-attention and feed-forward, with residual connections and norms.

    "pre": x + f(LN(x)). "post": LN(x + f(x)), as in the published Routing Transformer. "pre_and_post": x +
    LN(f(LN(x))), as in Gemma 2. A block without `feed_forward` is for all-attention layers.

    Args:
        attention: an attention layer of this library.
        feed_forward: a layer from (B, T, D) to (B, T, D), or None.
        norm: "pre", "post" or "pre_and_post" with `keras.layers.LayerNormalization`, or "pre_rms", "post_rms" or
            "pre_and_post_rms" with `keras.layers.RMSNormalization`. Default "pre".
        causal: whether later positions are masked: the `use_causal_mask` of the attention. Required for successor
            values and for selected blocks. Default False.
        dropout: dropout rate of the output of each sublayer, in [0, 1). Default 0.
        epsilon: epsilon of the norms, default 1e-6.
        remat: whether the backward pass recomputes the sublayers instead of storing their activations: less memory,
            about a third more time. State and dropout seeds are still updated once. Default False.
        seed: integer seed of the dropout.
        cross_attention: an attention layer from this sequence to the sequence of an encoder, or None. In a causal block
            its result must not depend on other queries: `selection="top_keys"` is supported, `selection="top_k"` and
            clustered attention raise an error. As published, a layer with `reproduce_reference=True` may have
            `selection="top_k"`; it warns, and `causal_selection` of the block is False.
        reproduce_reference: whether padding is only masked as a key, as in the published Routing Transformer, where
            padded queries are computed and take places in clusters. Default False: padding is ignored.
        **kwargs: `name`, `dtype`, `trainable`. Sublayers compute in their own dtypes; their outputs are cast to the
            dtype of the block.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), False for padding. None: the mask that `inputs` carries.
        attention_mask: as in `AttentionLayer`.
        segment_ids: int (B, T), as in `AttentionLayer`.
        memory: float (B, L, D), inputs of this block at the L previous positions, as in `AttentionLayer`.
        memory_segment_ids: int (B, L), as in `AttentionLayer`.
        encoder_sequence: float (B, S, D'), the sequence for the cross-attention; required with `cross_attention`.
        encoder_padding_mask: bool (B, S), False for padding. None: the mask that `encoder_sequence` carries.
        encoder_segment_ids: int (B, S), the documents of `encoder_sequence`, used with `segment_ids`; tokens attend
            within their document. None: one document per row.
        training: whether to apply dropout and update state.
        **extra_masks: masks by name for the attention, such as "global_mask" of `GlobalLocalAttention`.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: if an argument is invalid, if a sublayer changes the size of its input, or for a mask that the
            attention does not accept.

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
        cross_attention: AttentionLayer | MixedAttention | None = None,
        reproduce_reference: bool = False,
        **kwargs: Any,
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        check_sublayers(attention, feed_forward, cross_attention)
        checks.check_choice("norm", norm, NORMS)
        checks.check_switch("causal", causal)
        check_causal(attention, cross_attention, causal)
        checks.check_switch("remat", remat)
        checks.check_switch("reproduce_reference", reproduce_reference)
        checks.check_rate("dropout", dropout)
        checks.check_positive("epsilon", epsilon)
        checks.check_optional_count("seed", seed, minimum=0)
        self.supports_masking = True
        self.attention = attention
        self.feed_forward = feed_forward
        self.cross_attention = cross_attention
        self.norm = norm
        self.causal = causal
        self.dropout = dropout
        self.epsilon = epsilon
        self.remat = remat
        self.seed = seed
        self.reproduce_reference = reproduce_reference
        self._seeds = SeedGenerator(seed) if dropout > 0 else None

    @property
    def causal_selection(self) -> bool:
        """Whether, in a causal block, the keys that a query attends to depend on no later token."""
        return all(map(_is_causal_selection, [*parts_of(self.attention), *parts_of(self.cross_attention)]))

    def build(
        self, inputs_shape: Shape, encoder_sequence_shape: Shape | None = None, **other_shapes: Shape | None
    ) -> None:
        parts = (self.attention,), (self.cross_attention, encoder_sequence_shape), (self.feed_forward,)
        for layer, *sources in parts:
            if layer is None:
                continue
            if not layer.built:
                layer.build(inputs_shape, *sources)
            found = tuple(layer.compute_output_shape(inputs_shape))
            if found != tuple(inputs_shape):
                raise ValueError(
                    "`attention`, `cross_attention` and `feed_forward` must return the shape of their inputs, for the "
                    f"residual connection. Received: {layer.name}, from {tuple(inputs_shape)} to {found}."
                )
        self._result_norms: dict[str, keras.layers.Layer] = {}  # by the names of the norms before the sublayers
        self._attention_norm = self._norm("attention_norm", inputs_shape)
        self._cross_attention_norm = self._feed_forward_norm = None
        if self.cross_attention is not None:
            self._cross_attention_norm = self._norm("cross_attention_norm", inputs_shape)
        if self.feed_forward is not None:
            self._feed_forward_norm = self._norm("feed_forward_norm", inputs_shape)

    def _norm(self, name, inputs_shape):
        if is_around(self.norm):
            self._result_norms[name] = self._built_norm(f"{name}_of_result", inputs_shape)
        return self._built_norm(name, inputs_shape)

    def _built_norm(self, name, inputs_shape):
        layer = make_norm(self.norm, self.epsilon, name, self.dtype_policy)
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
        encoder_sequence: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        encoder_segment_ids: Tensor | None = None,
        training: bool | None = None,
        inputs_mask: Tensor | None = None,
        **extra_masks: Tensor | None,
    ) -> Tensor:
        checks.check_dense("inputs", inputs)
        checks.check_dense("encoder_sequence", encoder_sequence)
        # Keras passes the mask of `inputs` as `mask` if they are the only tensor, otherwise as `inputs_mask`.
        mask = inputs_mask if mask is None else mask
        mask = implicit_mask(inputs) if mask is None else mask
        given = {"query_mask": mask, "attention_mask": attention_mask, "segment_ids": segment_ids}
        if self.reproduce_reference:
            inputs, given = hide_from_attention(inputs, "query_mask", given)
        else:
            inputs = finite_padding(inputs, mask_of_tokens("mask", mask, inputs))
        if memory is not None:
            memory = self._attention_norm(memory) if is_before(self.norm) else memory
            given |= {"memory": memory, "memory_segment_ids": memory_segment_ids}
        check_extra_masks(self.attention, extra_masks, self)
        given |= {name: extra for name, extra in extra_masks.items() if extra is not None}

        def attend(x):
            return self._run(self.attention, x, training, use_causal_mask=self.causal, **given)

        x = self._residual(inputs, attend, self._attention_norm, training)
        across = {"query_mask": mask, "value_mask": encoder_padding_mask}
        if encoder_segment_ids is not None:
            across |= {"segment_ids": segment_ids, "value_segment_ids": encoder_segment_ids}
        x = self._attend_across(x, encoder_sequence, across, training)
        if self.feed_forward is None:
            return x
        return self._residual(x, lambda x: self._run(self.feed_forward, x, training), self._feed_forward_norm, training)

    def _attend_across(self, x, encoder_sequence, masks, training):
        """Apply the cross-attention, if any."""
        self._check_encoder_sequence(encoder_sequence)
        if self.cross_attention is None:
            return x
        if masks["value_mask"] is None:
            masks["value_mask"] = implicit_mask(encoder_sequence)
        if self.reproduce_reference:
            encoder_sequence, masks = hide_from_attention(encoder_sequence, "value_mask", {**masks, "query_mask": None})
        for part in parts_of(self.cross_attention):
            if self.causal and not _is_causal_selection(part):
                warn_once(
                    part,
                    "as cross-attention of a causal block is not causal: which tokens a cluster holds depends on later "
                    "queries. Use selection='top_keys'.",
                )

        def attend(x):
            return self._run(self.cross_attention, x, training, encoder_sequence, **masks)

        return self._residual(x, attend, self._cross_attention_norm, training)

    def _check_encoder_sequence(self, encoder_sequence):
        if (self.cross_attention is None) != (encoder_sequence is None):
            raise ValueError(
                "`encoder_sequence` must be given to a block with `cross_attention`, and to no other. Received: "
                f"encoder_sequence={'None' if encoder_sequence is None else 'a tensor'}."
            )

    def _residual(self, x, sublayer, norm, training):
        change = sublayer(norm(x) if is_before(self.norm) else x)
        if norm.name in self._result_norms:
            change = self._result_norms[norm.name](change)
        change = ops.cast(change, x.dtype)
        if training and self._seeds is not None:
            change = keras.random.dropout(change, self.dropout, seed=self._seeds)
        return x + change if is_before(self.norm) else norm(x + change)

    def _run(self, layer, x, training, *sources, **arguments):
        call = remat_call if self.remat and training else type(layer).__call__
        return call(layer, x, *sources, training=training, **arguments)

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Why the block cannot decode with a KV cache. None if it can."""
        if not self.causal:
            return "it attends to later positions"
        if self.reproduce_reference:
            return "with reproduce_reference=True padding takes part in the selection"
        across = None if self.cross_attention is None else self.cross_attention.cross_cache_unsupported_reason
        return self.attention.cache_unsupported_reason or across

    def init_cache(
        self,
        batch_size: Size,
        max_length: Size | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        encoder_sequence: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        positions_in_cache: bool = False,
    ) -> dict[str, Any]:
        """Create the caches of the attention layers, by name, before the first token.

        The arguments are those of `AttentionLayer.init_cache`; a memory holds inputs of this block. The keys and values
        of `encoder_sequence` are computed here.

        Raises:
            ValueError: as `AttentionLayer.init_cache`, and unless `encoder_sequence` is given exactly with
                `cross_attention`.
        """
        check_has_cache(self)
        self._check_encoder_sequence(encoder_sequence)
        if memory is not None and is_before(self.norm):
            memory = self._attention_norm(memory)
        given = batch_size, max_length, memory, memory_mask, positions_in_cache
        cache = {self.attention.name: self.attention.init_cache(*given)}
        if self.cross_attention is not None:
            across = self.cross_attention.init_cross_cache(encoder_sequence, value_mask=encoder_padding_mask)
            cache[self.cross_attention.name] = across
        return cache

    def prefill(
        self,
        inputs: Tensor,
        cache: dict[str, Any],
        mask: Tensor | None = None,
        encoder_sequence: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute a prompt in one pass.

        Args:
            inputs: float (B, T, D), from the first token on.
            cache: result of `init_cache`, without tokens.
            mask: bool (B, T), False for padding, which must be on the right. None: the mask that `inputs` carries.
            encoder_sequence: the same as in `init_cache`.
            encoder_padding_mask: the same as in `init_cache`.

        Returns:
            Pair of the output (B, T, D) and the cache after the prompt.

        Raises:
            ValueError: as `AttentionLayer.prefill`, and for another encoder sequence than in `init_cache`.
        """
        self._check_encoder_sequence(encoder_sequence)
        mask = mask_of_tokens("mask", mask, inputs)
        inputs = finite_padding(inputs, mask)

        def attend_across(x, own):
            check_source("encoder_sequence", encoder_sequence, own)
            masks = {"query_mask": mask, "value_mask": encoder_padding_mask}
            return self.cross_attention(x, encoder_sequence, training=False, **masks)  # type: ignore[misc]

        return self._decoded(
            inputs,
            cache,
            lambda x, own: self.attention.prefill(x, own, mask),
            attend_across,
        )

    def decode(self, inputs: Tensor, cache: dict[str, Any], index: Size) -> tuple[Tensor, dict[str, Any]]:
        """Compute the next token.

        Args:
            inputs: float (B, 1, D).
            cache: result of `init_cache`, `prefill` or the previous `decode`.
            index: int32 () or (B,), the position of the token: the number of tokens in the cache.

        Returns:
            Pair of the output (B, 1, D) and the cache after the token.

        Raises:
            ValueError: as `AttentionLayer.decode`.
        """
        return self._decoded(
            inputs,
            cache,
            lambda x, own: self.attention.decode(x, own, index),
            lambda x, own: self.cross_attention.decode_cross(x, own, index),  # type: ignore[union-attr]
        )

    def _decoded(self, inputs, cache, attend, attend_across):
        """Compute the outputs of a block whose attentions read and update the cache."""
        check_entries(cache, [layer.name for layer in (self.attention, self.cross_attention) if layer is not None])
        name, new, inputs = self.attention.name, dict(cache), ops.cast(inputs, self.compute_dtype)

        def attend_and_keep(x):
            output, new[name] = attend(x, cache[name])
            return output

        x = self._residual(inputs, attend_and_keep, self._attention_norm, training=False)
        if self.cross_attention is not None:
            own = cache[self.cross_attention.name]  # constant
            x = self._residual(x, lambda x: attend_across(x, own), self._cross_attention_norm, training=False)
        if self.feed_forward is not None:
            x = self._residual(x, self.feed_forward, self._feed_forward_norm, training=False)
        return x, new

    def compute_output_shape(self, inputs_shape: Shape, **other_shapes: Shape | None) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        names = ("norm", "causal", "dropout", "epsilon", "remat", "seed", "reproduce_reference")
        layers = {name: getattr(self, name) for name in SUBLAYERS}
        parts = {
            name: None if layer is None else keras.saving.serialize_keras_object(layer)
            for name, layer in layers.items()
        }
        return {**super().get_config(), **parts, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        given = {name: config.get(name) for name in SUBLAYERS}  # configs of older versions have no cross-attention
        parts = {name: None if part is None else deserialize_unbuilt(part) for name, part in given.items()}
        return cls(**{**config, **parts})


Attention: TypeAlias = AttentionLayer | MixedAttention


def check_sublayers(attention: Any, feed_forward: Any, cross_attention: Any) -> None:
    """Raise a `ValueError` for invalid sublayers of a block."""
    kinds = (AttentionLayer, MixedAttention)
    if not isinstance(attention, kinds):
        raise ValueError(f"`attention` must be an attention layer of this library. Received: attention={attention!r}.")
    if feed_forward is not None and not isinstance(feed_forward, keras.layers.Layer):
        raise ValueError(f"`feed_forward` must be a Keras layer or None. Received: feed_forward={feed_forward!r}.")
    if cross_attention is not None and (
        not isinstance(cross_attention, kinds) or cross_attention.name == attention.name
    ):
        raise ValueError(
            "`cross_attention` must be another attention layer of this library, of another name, or None. "
            f"Received: cross_attention={cross_attention!r}, attention={attention!r}."
        )


def check_causal(attention: Attention, cross_attention: Attention | None, causal: bool) -> None:
    """Raise a `ValueError` if an attention layer does not support a causal, or a non-causal, block."""
    parts = parts_of(attention)
    if not causal and (alone := _causal_parts(parts)):
        raise ValueError(
            f"`causal` must be True with {alone[0]}, which is for causal self-attention alone. Received: causal=False."
        )
    never = [part for part in parts if not can_be_causal(part)]
    if causal and never:
        raise ValueError(
            f"`causal` must be False with {name_with_leaf(never[0], 'can_be_causal', False)}, which cannot mask later "
            "positions. Received: causal=True."
        )
    across = parts_of(cross_attention)
    if alone := _causal_parts(across):
        raise ValueError(
            f"`cross_attention` must be for two sequences, and {alone[0]} is for causal self-attention alone. "
            f"Received: cross_attention={cross_attention!r}."
        )
    others = [part for part in across if part.cross_cache_unsupported_reason and not _is_published(part)]
    if causal and others:
        raise ValueError(
            "`cross_attention` of a causal block must be one whose result for a query depends on no other query: "
            f"{others[0].cross_cache_unsupported_reason}. Received: cross_attention={cross_attention!r}."
        )


def parts_of(attention: Attention | None) -> list[AttentionLayer]:
    """Return the parts of an attention: those of a `MixedAttention`, or the layer itself; none for None."""
    if attention is None:
        return []
    return attention.parts if isinstance(attention, MixedAttention) else [attention]


def _causal_parts(parts):
    """Return the names of the parts for causal self-attention alone."""
    patterns = ((part, part.pattern) for part in parts)
    return [name_with_leaf(part, "must_be_causal") for part, own in patterns if own is not None and own.must_be_causal]


def _is_causal_selection(part):
    """Return whether, in a causal block, the keys that a query attends to depend on no later token."""
    return part.pattern is None or part.pattern.causal_selection


def _is_published(part):
    """Return whether cross-attention depends on other queries because the published code does."""
    if not isinstance(part, RoutingAttention) or part.share_qk:
        return False
    return part.reproduce_reference and part.selection in OF_ALL_TOKENS


# Before a sublayer, after its residual, or before it and on its result; layer norms, or by the root mean square alone,
# without a mean and a bias.
NORMS = ("pre", "post", "pre_and_post", "pre_rms", "post_rms", "pre_and_post_rms")


def is_before(norm: str) -> bool:
    """Return whether one of `NORMS` is applied before its sublayer."""
    return norm.startswith("pre")


def is_around(norm: str) -> bool:
    """Return whether one of `NORMS` is applied before its sublayer and to the output of the sublayer."""
    return norm.startswith("pre_and_post")


def make_norm(norm: str, epsilon: float, name: str, dtype: keras.DTypePolicy) -> keras.layers.Layer:
    """Create a norm layer of the type of one of `NORMS`."""
    kind = keras.layers.RMSNormalization if norm.endswith("rms") else keras.layers.LayerNormalization
    return kind(epsilon=epsilon, name=name, dtype=dtype)


def remat_call(layer: keras.layers.Layer, *tensors: Tensor | None, **arguments: Any) -> Tensor:
    """Call a layer without storing its activations for the backward pass.

    `keras.remat` around a layer would run its assignments twice, so that centroids and dropout seeds advance two steps.
    Here the layer runs without side effects on copies of its variables. Its new state is then assigned, and its losses
    added, once.

    Args:
        layer: a built layer.
        *tensors: inputs, or None, in the order of the layer's call.
        **arguments: keyword arguments without gradients; tensors among them are captured.

    Returns:
        The outputs of `layer(*tensors, **arguments)`.
    """
    trainable = [ops.copy(variable) for variable in layer.trainable_variables]
    state = [ops.copy(variable) for variable in layer.non_trainable_variables]

    def run(trainable, state, *tensors):
        return layer.stateless_call(trainable, state, *tensors, return_losses=True, **arguments)

    outputs, new_state, losses = keras.remat(run)(trainable, state, *tensors)
    for variable, value in zip(layer.non_trainable_variables, new_state, strict=True):
        variable.assign(ops.stop_gradient(value))
    for loss in losses[: len(losses) - _num_regularized(layer)]:
        layer.add_loss(loss)
    return outputs


def _num_regularized(layer):
    """Return the number of weight regularization losses, which end the list; the layer adds them itself."""
    return sum(1 for weight in layer.trainable_weights if weight.regularizer is not None)
