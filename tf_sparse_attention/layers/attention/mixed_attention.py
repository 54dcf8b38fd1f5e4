"""Sum of attention layers with different patterns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_checks import check_entries
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, check_has_cache, check_has_cross_cache
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin
from tf_sparse_attention.layers.parts.call_inputs import (
    as_tensor,
    check_attention_mask,
    normalize_self_attention,
    sequence_shape,
)
from tf_sparse_attention.layers.parts.variables import deserialize_unbuilt
from tf_sparse_attention.ops.autograph import without_autograph
from tf_sparse_attention.ops.masks import slice_mask_heads
from tf_sparse_attention.patterns.engine.kv_cache import Cache
from tf_sparse_attention.patterns.pattern import Heads, Pattern
from tf_sparse_attention.types import Config, Shape, Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class MixedAttention(AdaptableMixin, keras.layers.Layer):
    """Sum of attention layers with different patterns.

    Each part is an attention layer with its own heads and projections. The sum equals one output projection of the
    concatenated heads, as in Roy et al. 2021 (section 4.2). Therefore only the first part has an output bias.
    `SparseAttention` with `tsa.patterns.Heads` also gives heads different patterns, in a single layer.

    Args:
        parts: attention layers of this library, in the order of their heads. The parts become sublayers. All except the
            first lose their output bias.
        **kwargs: `name`, `dtype`, `trainable`. `dtype` is the dtype of the sum; each part computes in its own dtype.

    Call arguments:
        The arguments of `AttentionLayer` are passed to every part. Masks in `extra_mask_names`, such as "global_mask"
        of `GlobalLocalAttention`, are passed to the parts that accept them.

    Returns:
        Float (B, T, D). With `return_attention_scores`, the pair of output and weights (B, N, T, S), in the order of
        the parts.

    Raises:
        ValueError: if `parts` is empty or contains other objects, if a part after the first is already built with an
            output bias, if outputs differ in size, or for a mask that no part accepts.

    Example:
        >>> layer = MixedAttention([
        ...     LocalAttention(num_heads=6, key_dim=64, window=256),
        ...     RoutingAttention(num_heads=2, key_dim=64, num_clusters=16, cluster_size=256),
        ... ])
        >>> tuple(layer(keras.random.normal((1, 512, 128)), use_causal_mask=True).shape)
        (1, 512, 128)
    """

    parts: list[AttentionLayer]

    def __init__(self, parts: Sequence[AttentionLayer], **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        listed = isinstance(parts, (list, tuple)) and len(parts) > 0
        if not listed or not all(isinstance(part, AttentionLayer) for part in parts):
            raise ValueError(f"`parts` must be a list of attention layers of this library. Received: parts={parts!r}.")
        self.supports_masking = True
        self.parts = list(parts)
        for part in self.parts[1:]:
            if part.built and part.use_output_bias:
                raise ValueError(
                    "`parts` after the first must have no output bias: pass them unbuilt or with "
                    f"use_output_bias=False. Received: {part.name}, built with an output bias."
                )
            part.use_output_bias = False

    @property
    def num_heads(self) -> int:
        """The number of heads of all parts."""
        return sum(part.num_heads for part in self.parts)

    @property
    def num_features(self) -> int | None:
        """D, the number of channels of the query."""
        return self.parts[0].num_features

    @property
    def pattern(self) -> Pattern | None:
        """The patterns of the parts as `Heads`. None if a part has no pattern."""
        groups = [(part.num_heads, part.pattern) for part in self.parts]
        return None if any(pattern is None for _, pattern in groups) else Heads(groups)

    @property
    def extra_mask_names(self) -> tuple[str, ...]:
        """Names of additional masks that at least one part accepts."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.extra_mask_names))

    def copy_projections(self, attention: keras.layers.Layer) -> None:
        """Copy the projections of a built Keras attention layer, with its heads in the order of the parts.

        Args:
            attention: attention layer with as many heads as all parts together.

        Raises:
            ValueError: if the layer is not built, or has another number of heads or other projections.
        """
        if projections.head_count(attention) != self.num_heads:
            raise ValueError(
                f"`attention` must have {self.num_heads} heads, the total of all parts. "
                f"Received: {projections.head_count(attention)} heads."
            )
        projections.build_for(attention, self)
        for part, heads in zip(self.parts, self._head_slices(), strict=True):
            part.copy_projections(attention, heads)

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        sizes = [part.compute_output_shape(query_shape) for part in self.parts]
        if len(set(sizes)) > 1:
            raise ValueError(f"`parts` must have outputs of the same shape. Received: outputs of shapes {sizes}.")
        for part in self.parts:
            if not part.built:
                part.build(query_shape, value_shape, key_shape)

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
        # Keras passes the mask of a single query as `mask`.
        query_mask = mask if query_mask is None else query_mask
        common: dict[str, Any] = {
            "query_mask": query_mask,
            "value_mask": value_mask,
            "key_mask": key_mask,
            "return_attention_scores": return_attention_scores,
            "training": training,
            "use_causal_mask": use_causal_mask,
            "segment_ids": segment_ids,
            "value_segment_ids": value_segment_ids,
        }
        if memory is not None:
            common |= {"memory": memory, "memory_segment_ids": memory_segment_ids}
        masks = self._part_masks(attention_mask, extra_masks, query, value)
        results = [part(query, value, key, **common, **own) for part, own in zip(self.parts, masks, strict=True)]
        if not return_attention_scores:
            return self._sum(results)
        outputs, weights = zip(*results, strict=True)
        return self._sum(outputs), ops.concatenate([ops.cast(x, self.compute_dtype) for x in weights], axis=1)

    def _sum(self, outputs: Iterable[Tensor]) -> Tensor:
        """Add the outputs of the parts in the dtype of this layer."""
        first, *others = (ops.cast(output, self.compute_dtype) for output in outputs)
        return sum(others, first)

    def _part_masks(
        self,
        attention_mask: Tensor | None,
        extra_masks: Mapping[str, Tensor | None],
        query: Tensor,
        value: Tensor | None,
    ) -> list[dict[str, Tensor | None]]:
        """Return the attention mask and the extra masks of each part, by name."""
        attention_checks.check_extra_masks(self, extra_masks)
        extra = {name: mask for name, mask in extra_masks.items() if mask is not None}
        masks = [attention_mask] * len(self.parts)
        if attention_mask is not None:
            attention_mask = as_tensor(attention_mask)
            lengths = [sequence_shape(self, x.shape)[1] for x in (query, query if value is None else value)]
            # Checked before slicing: a slice of an invalid mask could be valid.
            check_attention_mask(attention_mask, query.shape[0], self.num_heads, *lengths)
            if len(attention_mask.shape) == 4:
                masks = [slice_mask_heads(attention_mask, heads) for heads in self._head_slices()]
        return [
            {"attention_mask": mask, **{name: extra[name] for name in part.extra_mask_names if name in extra}}
            for part, mask in zip(self.parts, masks, strict=True)
        ]

    def _head_slices(self) -> list[slice]:
        """Return the slice of the heads of each part."""
        ends = np.cumsum([part.num_heads for part in self.parts])
        return [slice(end - part.num_heads, end) for part, end in zip(self.parts, ends, strict=True)]

    @without_autograph
    def attention_pattern(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        use_causal_mask: bool = False,
        attention_mask: Tensor | None = None,
        **masks: Tensor | None,
    ) -> Tensor:
        """Compute the dense reference mask, bool (B, N, T, S), in the order of the parts."""
        names = ("query_mask", "value_mask", "key_mask", "segment_ids", "value_segment_ids")
        common = {name: masks.pop(name) for name in names if name in masks}
        part_masks = self._part_masks(attention_mask, masks, query, value)
        patterns = [
            part.attention_pattern(query, value, key, use_causal_mask, **common, **own)
            for part, own in zip(self.parts, part_masks, strict=True)
        ]
        return ops.concatenate(patterns, axis=1)

    @property
    def cache_unsupported_reason(self) -> str | None:
        """Reason why the layer cannot decode with a KV cache, or None."""
        return next((part.cache_unsupported_reason for part in self.parts if part.cache_unsupported_reason), None)

    @without_autograph
    def init_cache(
        self,
        batch_size: Size,
        max_length: Size | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        **options: Any,
    ) -> dict[str, Cache]:
        """Create a dictionary of empty caches, keyed by layer name; see `AttentionLayer.init_cache`."""
        check_has_cache(self)
        arguments = batch_size, max_length, memory, memory_mask
        return {name: part.init_cache(*arguments, **options) for name, part in self._named_parts()}

    @without_autograph
    def extend(
        self,
        x: Tensor,
        cache: dict[str, Cache],
        mask: Tensor | None = None,
        index: Size | None = None,
        num_kept: Size | None = None,
    ) -> tuple[Tensor, dict[str, Cache]]:
        """Compute the output (B, q, D) for new tokens, and update the caches; see `AttentionLayer.extend`."""
        return self._sum_with_caches(cache, lambda part, own: part.extend(x, own, mask, index, num_kept))

    @without_autograph
    def rewind(self, cache: dict[str, Cache], lengths: Size) -> dict[str, Cache]:
        """Remove the last tokens of each row from the cache; see `AttentionLayer.rewind`."""
        return {name: part.rewind(own, lengths) for name, part, own in self._parts_with(cache)}

    @property
    def cross_cache_unsupported_reason(self) -> str | None:
        """Reason why the layer cannot decode with a cross-attention cache, or None."""
        return next(
            (part.cross_cache_unsupported_reason for part in self.parts if part.cross_cache_unsupported_reason), None
        )

    @without_autograph
    def init_cross_cache(
        self,
        value: Tensor,
        key: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> dict[str, Cache]:
        """Create a dictionary of cross-attention caches, keyed by layer name; see `AttentionLayer.init_cross_cache`."""
        check_has_cross_cache(self)
        return {name: part.init_cross_cache(value, key, value_mask, key_mask) for name, part in self._named_parts()}

    @without_autograph
    def decode_cross(self, x: Tensor, cache: dict[str, Cache], index: Size) -> Tensor:
        """Compute the cross-attention output (B, q, D) for consecutive queries; see `AttentionLayer.decode_cross`."""
        return self._sum([part.decode_cross(x, own, index) for _, part, own in self._parts_with(cache)])

    def _named_parts(self) -> list[tuple[str, AttentionLayer]]:
        names = [part.name for part in self.parts]
        return [
            (name if names.count(name) == 1 else f"{name}_{number}", part)
            for number, (name, part) in enumerate(zip(names, self.parts, strict=True))
        ]

    def _parts_with(self, cache: dict[str, Cache]) -> list[tuple[str, AttentionLayer, Cache]]:
        """Return the name, the layer and the cache of each part."""
        named = self._named_parts()
        check_entries(cache, [name for name, _ in named])
        return [(name, part, cache[name]) for name, part in named]

    def _sum_with_caches(
        self, cache: dict[str, Cache], run: Callable[[AttentionLayer, Cache], tuple[Tensor, Cache]]
    ) -> tuple[Tensor, dict[str, Cache]]:
        """Run each part with its cache, and return the sum of the outputs and the new caches."""
        results = {name: run(part, own) for name, part, own in self._parts_with(cache)}
        return self._sum([output for output, _ in results.values()]), {name: new for name, (_, new) in results.items()}

    def compute_output_shape(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> tuple[int | None, ...]:
        return self.parts[0].compute_output_shape(query_shape, value_shape, key_shape)

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        **kwargs: Any,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:
        for part in self.parts:
            attention_checks.check_call(part, value, key, use_causal_mask)
        output_shape = self.compute_output_shape(query.shape, *(None if x is None else x.shape for x in (value, key)))
        return projections.output_spec(self, output_shape, query, value, return_attention_scores)

    def get_config(self) -> Config:
        return {**super().get_config(), "parts": [keras.saving.serialize_keras_object(part) for part in self.parts]}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        parts = [deserialize_unbuilt(part) for part in config["parts"]]
        return cls(**{**config, "parts": parts})
