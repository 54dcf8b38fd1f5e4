"""Transformer block."""

from typing import Any, Self, TypeAlias

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_checks import (
    can_be_causal,
    check_entries,
    check_extra_masks,
    describe_pattern,
    num_cached_tokens,
    warn_once,
)
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, check_has_cache
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.attention.routing_attention import MEMBER_SELECTIONS, RoutingAttention
from tf_sparse_attention.layers.data_parallel import SeedGenerator
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin
from tf_sparse_attention.layers.parts.call_inputs import (
    finite_padding,
    hide_from_attention,
    implicit_mask,
    token_mask,
)
from tf_sparse_attention.layers.parts.variables import deserialize_unbuilt
from tf_sparse_attention.ops.autograph import without_autograph
from tf_sparse_attention.types import Config, Shape, Size, Tensor

SUBLAYERS = ("attention", "cross_attention", "feed_forward")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class TransformerBlock(AdaptableMixin, keras.layers.Layer):
    """Transformer block: attention, optional cross-attention and feed-forward, with residual connections and norms.

    A sublayer f with norm LN computes:

    - "pre": x + f(LN(x));
    - "post": LN(x + f(x)), as in the published Routing Transformer;
    - "pre_and_post": x + LN(f(LN(x))), as in Gemma 2.

    All-attention layers need no `feed_forward`.

    Args:
        attention: an attention layer of this library.
        feed_forward: a layer from (B, T, D) to (B, T, D), or None.
        norm: "pre", "post" or "pre_and_post" with `keras.layers.LayerNormalization`, or "pre_rms", "post_rms" or
            "pre_and_post_rms" with `keras.layers.RMSNormalization`. Default "pre".
        causal: whether to mask later positions in `attention`. Must be True for successor values and for selected
            blocks. Default False.
        dropout: dropout rate of the output of each sublayer, in [0, 1). Default 0.
        epsilon: epsilon of the norms. Default 1e-6.
        remat: whether the backward pass recomputes the sublayers instead of storing their activations. This saves
            memory, but takes about a third more time. State and dropout seeds are updated once. Default False.
        seed: integer seed of the dropout.
        cross_attention: cross-attention layer over an encoder sequence, or None. In a causal block, the result of a
            query must not depend on other queries: `selection="top_keys"` is supported, but `selection="top_k"` and
            clustered attention raise an error. Exception: as published, a layer with `reproduce_reference=True` may
            have `selection="top_k"`. The block then issues a warning, and its `causal_selection` is False.
        reproduce_reference: whether to mask padding only as keys, as in the published Routing Transformer. Padded
            queries are then computed, and padded tokens belong to clusters. Default False: padding has no effect.
        **kwargs: `name`, `dtype`, `trainable`. Sublayers compute in their own dtypes. Their outputs are cast to the
            dtype of the block.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), False for padding. None: the mask that `inputs` carries.
        attention_mask: as in `AttentionLayer`.
        segment_ids: int (B, T), as in `AttentionLayer`.
        memory: float (B, L, D), inputs of this block at the L previous positions, as in `AttentionLayer`.
        memory_segment_ids: int (B, L), as in `AttentionLayer`.
        encoder_sequence: float (B, S, D'), the sequence for the cross-attention. Required with `cross_attention`.
        encoder_padding_mask: bool (B, S), False for padding. None: the mask that `encoder_sequence` carries.
        encoder_segment_ids: int (B, S), the documents of `encoder_sequence`, used with `segment_ids`. Tokens attend
            within their document. None: one document per row.
        training: whether to apply dropout and update state.
        **extra_masks: named masks for the attention layer, such as "global_mask" of `GlobalLocalAttention`.

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
        _check_sublayers(attention, feed_forward, cross_attention)
        checks.check_choice("norm", norm, NORMS)
        checks.check_switch("causal", causal)
        _check_causal(attention, cross_attention, causal)
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
        """Whether key selection in a causal block is independent of later tokens."""
        return all(map(_has_causal_selection, [*_parts(self.attention), *_parts(self.cross_attention)]))

    def build(
        self, inputs_shape: Shape, encoder_sequence_shape: Shape | None = None, **other_shapes: Shape | None
    ) -> None:
        sublayers = (self.attention,), (self.cross_attention, encoder_sequence_shape), (self.feed_forward,)
        for layer, *sources in sublayers:
            if layer is None:
                continue
            if not layer.built:
                layer.build(inputs_shape, *sources)
            found = tuple(layer.compute_output_shape(inputs_shape))
            if found != tuple(inputs_shape):
                raise ValueError(
                    "`attention`, `cross_attention` and `feed_forward` must return the shape of their inputs. "
                    f"Received: {layer.name}, from {tuple(inputs_shape)} to {found}."
                )
        self._result_norms: dict[str, keras.layers.Layer] = {}  # by the name of the norm before the sublayer
        self._attention_norm = self._build_norms("attention_norm", inputs_shape)
        self._cross_attention_norm = self._feed_forward_norm = None
        if self.cross_attention is not None:
            self._cross_attention_norm = self._build_norms("cross_attention_norm", inputs_shape)
        if self.feed_forward is not None:
            self._feed_forward_norm = self._build_norms("feed_forward_norm", inputs_shape)

    def _build_norms(self, name, inputs_shape):
        """Build the norm of a sublayer, and with "pre_and_post" the norm of its output."""

        def build(name):
            layer = make_norm(self.norm, self.epsilon, name, self.dtype_policy)
            layer.build(inputs_shape)
            return layer

        if self.norm.startswith("pre_and_post"):
            self._result_norms[name] = build(f"{name}_of_result")
        return build(name)

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
        arguments = {"query_mask": mask, "attention_mask": attention_mask, "segment_ids": segment_ids}
        if self.reproduce_reference:
            inputs, arguments = hide_from_attention(inputs, "query_mask", arguments)
        else:
            inputs = finite_padding(inputs, token_mask("mask", mask, inputs))
        if memory is not None:
            memory = self._attention_norm(memory) if is_before(self.norm) else memory
            arguments |= {"memory": memory, "memory_segment_ids": memory_segment_ids}
        check_extra_masks(self.attention, extra_masks, self)
        arguments |= {name: extra for name, extra in extra_masks.items() if extra is not None}

        def attend(x):
            return self._run(self.attention, x, training, use_causal_mask=self.causal, **arguments)

        x = self._residual(inputs, attend, self._attention_norm, training)
        masks = {"query_mask": mask, "value_mask": encoder_padding_mask}
        if encoder_segment_ids is not None:
            masks |= {"segment_ids": segment_ids, "value_segment_ids": encoder_segment_ids}
        x = self._cross_attend(x, encoder_sequence, masks, training)
        if self.feed_forward is None:
            return x
        return self._residual(x, lambda x: self._run(self.feed_forward, x, training), self._feed_forward_norm, training)

    def _cross_attend(self, x, encoder_sequence, masks, training):
        """Apply the cross-attention, if any."""
        self._check_encoder_sequence(encoder_sequence)
        if self.cross_attention is None:
            return x
        if masks["value_mask"] is None:
            masks["value_mask"] = implicit_mask(encoder_sequence)
        if self.reproduce_reference:
            encoder_sequence, masks = hide_from_attention(encoder_sequence, "value_mask", {**masks, "query_mask": None})
        for part in _parts(self.cross_attention):
            if self.causal and not _has_causal_selection(part):
                warn_once(
                    part,
                    "as cross-attention of a causal block is not causal: its clusters depend on later queries. Use "
                    "selection='top_keys'.",
                )

        def attend(x):
            return self._run(self.cross_attention, x, training, encoder_sequence, **masks)

        return self._residual(x, attend, self._cross_attention_norm, training)

    def _check_encoder_sequence(self, encoder_sequence):
        if (self.cross_attention is None) != (encoder_sequence is None):
            raise ValueError(
                "`encoder_sequence` must be given with `cross_attention`, and must otherwise be None. Received: "
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
        """Reason why the block cannot decode with a KV cache, or None."""
        if not self.causal:
            return "it attends to later positions"
        if self.reproduce_reference:
            return "with reproduce_reference=True the selection depends on padding"
        cross_reason = None if self.cross_attention is None else self.cross_attention.cross_cache_unsupported_reason
        return self.attention.cache_unsupported_reason or cross_reason

    @without_autograph
    def init_cache(
        self,
        batch_size: Size,
        max_length: Size | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        encoder_sequence: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Create a dictionary of empty caches, keyed by layer name, and compute the cross-attention cache.

        Args:
            batch_size, max_length, memory_mask: as in `AttentionLayer.init_cache`.
            memory: float (B, L, D), inputs of this block.
            encoder_sequence, encoder_padding_mask: as in the call.
            **options: further arguments of `AttentionLayer.init_cache`.

        Raises:
            ValueError: as in `AttentionLayer.init_cache`, and if only one of `encoder_sequence` and `cross_attention`
                is given.
        """
        check_has_cache(self)
        self._check_encoder_sequence(encoder_sequence)
        if memory is not None and is_before(self.norm):
            memory = self._attention_norm(memory)
        arguments = batch_size, max_length, memory, memory_mask
        cache: dict[str, Any] = {self.attention.name: self.attention.init_cache(*arguments, **options)}
        if self.cross_attention is not None:
            cross_cache = self.cross_attention.init_cross_cache(encoder_sequence, value_mask=encoder_padding_mask)
            cache[self.cross_attention.name] = cross_cache
        return cache

    @without_autograph
    def extend(
        self,
        inputs: Tensor,
        cache: dict[str, Any],
        mask: Tensor | None = None,
        index: Size | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the output for the next tokens of each row, and add them to the cache.

        Args:
            inputs: float (B, q, D), the next q >= 1 tokens of each row, such as a prompt.
            cache: result of `init_cache` or of this method.
            mask: bool (B, q), False for padding, which must be on the right. None: the mask that `inputs` carries.
            index: as in `AttentionLayer.extend`.

        Returns:
            Pair of the output (B, q, D), arbitrary at padding, and the cache after the tokens.

        Raises:
            ValueError: as in `AttentionLayer.extend`.
        """
        self._check_cache(cache)
        mask = token_mask("mask", mask, inputs)
        inputs = ops.cast(finite_padding(inputs, mask), self.compute_dtype)
        name, new = self.attention.name, dict(cache)

        def attend(x):
            output, new[name] = self.attention.extend(x, cache[name], mask, index)
            return output

        def cross_attend(x):
            start = num_cached_tokens(cache[name]) if index is None else index
            return self.cross_attention.decode_cross(x, cache[self.cross_attention.name], start)  # type: ignore[union-attr]

        x = self._residual(inputs, attend, self._attention_norm, training=False)
        if self.cross_attention is not None:
            x = self._residual(x, cross_attend, self._cross_attention_norm, training=False)
        if self.feed_forward is not None:
            x = self._residual(x, self.feed_forward, self._feed_forward_norm, training=False)
        return x, new

    def _check_cache(self, cache):
        check_entries(cache, [layer.name for layer in (self.attention, self.cross_attention) if layer is not None])

    @without_autograph
    def rewind(self, cache: dict[str, Any], lengths: Size) -> dict[str, Any]:
        """Remove the last tokens of each row from the cache; see `AttentionLayer.rewind`."""
        name = self.attention.name
        self._check_cache(cache)
        return {**cache, name: self.attention.rewind(cache[name], lengths)}

    def compute_output_shape(self, inputs_shape: Shape, **other_shapes: Shape | None) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        names = ("norm", "causal", "dropout", "epsilon", "remat", "seed", "reproduce_reference")
        config = {**super().get_config(), **{name: getattr(self, name) for name in names}}
        for name in SUBLAYERS:
            layer = getattr(self, name)
            config[name] = None if layer is None else keras.saving.serialize_keras_object(layer)
        return config

    @classmethod
    def from_config(cls, config: Config) -> Self:
        layers = {name: None if config.get(name) is None else deserialize_unbuilt(config[name]) for name in SUBLAYERS}
        return cls(**{**config, **layers})


Attention: TypeAlias = AttentionLayer | MixedAttention


def _check_sublayers(attention: Any, feed_forward: Any, cross_attention: Any) -> None:
    kinds = (AttentionLayer, MixedAttention)
    if not isinstance(attention, kinds):
        raise ValueError(f"`attention` must be an attention layer of this library. Received: attention={attention!r}.")
    if feed_forward is not None and not isinstance(feed_forward, keras.layers.Layer):
        raise ValueError(f"`feed_forward` must be a Keras layer or None. Received: feed_forward={feed_forward!r}.")
    if cross_attention is not None and (
        not isinstance(cross_attention, kinds) or cross_attention.name == attention.name
    ):
        raise ValueError(
            "`cross_attention` must be an attention layer of this library with another name, or None. "
            f"Received: cross_attention={cross_attention!r}, attention={attention!r}."
        )


def _check_causal(attention: Attention, cross_attention: Attention | None, causal: bool) -> None:
    """Raise a `ValueError` if an attention layer does not support `causal`."""
    parts, cross_parts = _parts(attention), _parts(cross_attention)
    if not causal and (names := _causal_parts(parts)):
        raise ValueError(
            f"`causal` must be True with {names[0]}, which requires causal self-attention. Received: causal=False."
        )
    non_causal = [part for part in parts if not can_be_causal(part)]
    if causal and non_causal:
        raise ValueError(
            f"`causal` must be False with {describe_pattern(non_causal[0], 'can_be_causal', False)}, which cannot mask "
            "later positions. Received: causal=True."
        )
    if names := _causal_parts(cross_parts):
        raise ValueError(
            f"`cross_attention` must be for two sequences, but {names[0]} requires causal self-attention. "
            f"Received: cross_attention={cross_attention!r}."
        )
    dependent = [part for part in cross_parts if part.cross_cache_unsupported_reason and not _is_reference(part)]
    if causal and dependent:
        raise ValueError(
            "`cross_attention` of a causal block must compute each query independently of other queries: "
            f"{dependent[0].cross_cache_unsupported_reason}. Received: cross_attention={cross_attention!r}."
        )


def _parts(attention: Attention | None) -> list[AttentionLayer]:
    """Return the parts of a `MixedAttention`, or a list of the attention layer itself."""
    if attention is None:
        return []
    return attention.parts if isinstance(attention, MixedAttention) else [attention]


def _causal_parts(parts):
    """Return the names of the parts that require causal self-attention."""
    patterns = ((part, part.pattern) for part in parts)
    return [
        describe_pattern(part, "must_be_causal") for part, own in patterns if own is not None and own.must_be_causal
    ]


def _has_causal_selection(part):
    return part.pattern is None or part.pattern.causal_selection


def _is_reference(part):
    """Return whether a layer reproduces published cross-attention, whose queries depend on each other."""
    if not isinstance(part, RoutingAttention) or part.share_qk:
        return False
    return part.reproduce_reference and part.selection in MEMBER_SELECTIONS


# Placement and type: before the sublayer, after the residual connection, or before and after the sublayer; RMS norms
# have no mean and no bias.
NORMS = ("pre", "post", "pre_and_post", "pre_rms", "post_rms", "pre_and_post_rms")


def is_before(norm: str) -> bool:
    """Return whether one of `NORMS` is applied before its sublayer."""
    return norm.startswith("pre")


def make_norm(norm: str, epsilon: float, name: str, dtype: keras.DTypePolicy) -> keras.layers.Layer:
    """Create a norm layer of the type of one of `NORMS`."""
    kind = keras.layers.RMSNormalization if norm.endswith("rms") else keras.layers.LayerNormalization
    return kind(epsilon=epsilon, name=name, dtype=dtype)


def remat_call(layer: keras.layers.Layer, *tensors: Tensor | None, **arguments: Any) -> Tensor:
    """Call a layer without storing its activations for the backward pass.

    `keras.remat` around a layer would run its assignments twice: centroids and dropout seeds would advance two steps.
    This function calls the layer without side effects on copies of its variables. It then assigns the new state and
    adds the losses once.

    Args:
        layer: a built layer.
        *tensors: inputs, or None, in the order of the layer's call.
        **arguments: keyword arguments. Tensors among them have no gradients.

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
    # The list ends with weight regularization losses, which the layer adds itself.
    num_regularized = sum(1 for weight in layer.trainable_weights if weight.regularizer is not None)
    for loss in losses[: len(losses) - num_regularized]:
        layer.add_loss(loss)
    return outputs
