"""A sparse layer where a dense one stood: it takes the calls of Keras's and KerasHub's attention, caches too.

Here and not in `convert`, since models that hold one are loaded where only the library itself was imported.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.clustered_attention import ClusteredAttention
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.adaptation import AdaptableMixin
from tf_sparse_attention.layers.parts.masks import normalize_self_attention
from tf_sparse_attention.layers.parts.segment_memory import supports_memory
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import TokenMasks, expand_attention_mask, merge
from tf_sparse_attention.types import Config, Shape, Size, Tensor


@dataclasses.dataclass
class Prompt:
    """A prompt that fills the caches of a model.

    The model may put other tokens in front of the prompt, such as the tokens of an image. The caches have these too.

    Attributes:
        length: tokens of the prompt, padding included, an integer or int32 ().
        kept: how many of them the caches are to have, likewise.
        max_length: positions of the caches of the model itself, likewise. None: not known yet.
        fits: whether the caches of the layers can take the place of the model's own.
    """

    length: Size
    kept: Size
    max_length: Size | None = None
    fits: bool = True


@dataclasses.dataclass
class CachesInUse:
    """The caches of the layers of a model during one of its calls.

    Attributes:
        caches: by the id of a layer, its cache before the call, afterwards the one after it. A prompt creates
            new caches; a layer that it does not reach has an empty dictionary.
        prompt: the prompt of the call, or None for a step.
        called: the ids of the layers that attended, one for each time.
    """

    caches: dict[int, Any]
    prompt: Prompt | None = None
    called: list[int] = dataclasses.field(default_factory=list)

    def attend(self, layer: keras.layers.Layer, x: Tensor, index: Size) -> Tensor:
        """Returns the output (B, T, D) of an attention layer for a prompt, or for the token at `index`."""
        self.called.append(id(layer))
        if self.prompt is None:
            output, self.caches[id(layer)] = layer.decode(x, self.caches[id(layer)], index)
            return output
        prompt, (rows, length, _) = self.prompt, shape(x)
        max_length = length if prompt.max_length is None else prompt.max_length
        if isinstance(length, int) and isinstance(max_length, int) and length != max_length:
            prompt.fits = False  # the first step is not at the position after the prompt
        cache = layer.init_cache(rows, max_length)
        output, self.caches[id(layer)] = layer.prefill(x, cache, kept=prompt.kept + length - prompt.length)
        return output


_in_use: contextvars.ContextVar[CachesInUse | None] = contextvars.ContextVar("caches_in_use", default=None)


def caches_in_use(layer: keras.layers.Layer) -> CachesInUse | None:
    """Returns what the calling model said of the caches of an attention layer, or None if it said nothing."""
    used = _in_use.get()
    return used if used is not None and id(layer) in used.caches else None


@contextlib.contextmanager
def using_caches(
    layers: Sequence[keras.layers.Layer], caches: Sequence[Any], prompt: Prompt | None = None
) -> Iterator[CachesInUse]:
    """Context in which attention layers use some caches.

    Args:
        layers: attention layers of this library.
        caches: for each what its `init_cache`, `prefill` or `decode` returned; an empty dictionary with a prompt.
        prompt: see `CachesInUse`.
    """
    used = CachesInUse({id(layer): cache for layer, cache in zip(layers, caches, strict=True)}, prompt)
    token = _in_use.set(used)
    try:
        yield used
    finally:
        _in_use.reset(token)


MISSING: Any = object()  # an argument that is not given, where None is given for a tensor that is not there


class CallMask(NamedTuple):
    """The masks of a call by kind, in place of one mask (B, T, S) of all pairs.

    Attributes:
        padding_mask: bool (B, S), or None.
        attention_mask: bool, broadcastable to (B, N, T, S), or None.
        causal: whether later positions are hidden.
    """

    padding_mask: Tensor | None = None
    attention_mask: Tensor | None = None
    causal: bool = False


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SwappedAttention(AdaptableMixin, keras.layers.Layer):
    """Sparse self-attention that is called as `keras.layers.MultiHeadAttention` or the attention of KerasHub is.

    `tsa.convert.replace_attention` puts it inside layers whose code calls a dense attention. A mask that is the same
    for all queries masks tokens, which are in no cluster; where a pattern goes by content they are no queries either.

    A model that generates says itself where the caches are (`swapped_caches`): they are those of the sparse layer.
    Caches that are passed by hand have KerasHub's form. With an exact `window` and `value_dim` = `key_dim` a step of
    local and all-attention costs the window: the cache holds keys and values, as KerasHub does. Otherwise it holds the
    inputs, and a step recomputes attention for all positions.

    Args:
        attention: an attention layer of this library.
        causal: whether to hide later positions in every call, whatever it says.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        query: float (B, T, D), or `hidden_states`, as some decoders name it.
        value: None or `query` itself, as `key`.
        key_mask: bool (B, S), False for keys that no query may see.
        attention_mask: numbers or booleans, not zero where a query may see a key, of rank 2 to 4, broadcastable to
            (B, N, T, S).
        use_causal_mask: whether later positions are hidden.
        cache: float (B, 2, S, M, H), to continue a sequence, or None. Then the call is causal.
        cache_update_index: integer, the position of the first query; with `cache` alone.
        cache_update_mask: not used: which tokens of a prompt a cache has is known from its length.
        return_attention_scores: whether to return weights (B, N, T, S) too, not with a cache.
        training: whether to drop weights and update state.

    Returns:
        Float (B, T, D); the pair of it and the weights, or of it and the new cache.

    Raises:
        ValueError: for values or keys that are not the query, and caches that do not fit.

    Example:
        >>> layer = SwappedAttention(LocalAttention(num_heads=2, key_dim=8, window=4))
        >>> x, cache = keras.random.normal((1, 6, 16)), keras.ops.zeros((1, 2, 6, 2, 8))
        >>> whole = layer(x, x, use_causal_mask=True)
        >>> begun, cache = layer(x[:, :5], cache=cache, cache_update_index=0)
        >>> last, cache = layer(x[:, 5:], cache=cache, cache_update_index=5)
        >>> bool(keras.ops.all(keras.ops.abs(last - whole[:, 5:]) < 1e-5))
        True
    """

    def __init__(self, attention: AttentionLayer | MixedAttention, causal: bool = False, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attention = attention
        self.causal = causal

    def build(self, query_shape: Shape) -> None:
        if not self.attention.built:
            self.attention.build(query_shape)

    def __call__(
        self,
        query: Tensor | None = MISSING,
        value: Tensor | None = None,
        key: Tensor | None = None,
        *,
        hidden_states: Tensor | None = None,
        attention_mask: Tensor | CallMask | None = None,
        cache_update_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if query is MISSING:
            if hidden_states is None:
                raise TypeError(f"{self.name} must be called with 'query', or 'hidden_states' in its place.")
            query = hidden_states
        value, key = normalize_self_attention(query, value, key)
        if value is not None:
            raise ValueError(
                f"`value` and `key` must be the query where {self.name} is called: a {type(self.attention).__name__} "
                "took the place of self-attention. Let `make_layer` return None for attention to other sequences."
            )
        masks = attention_mask if isinstance(attention_mask, CallMask) else _call_mask(attention_mask, query)
        for name, more in (("key_mask", masks.padding_mask), ("attention_mask", masks.attention_mask)):
            kwargs[name] = more if kwargs.get(name) is None else kwargs[name]
        kwargs["use_causal_mask"] = bool(self.causal or masks.causal or kwargs.get("use_causal_mask"))
        return super().__call__(query, **kwargs)

    def call(
        self,
        query: Tensor,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        cache: Tensor | tuple[Tensor, Tensor] | None = None,
        cache_update_index: Size | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        key_mask, attention_mask = (None if x is None else ops.cast(x, "bool") for x in (key_mask, attention_mask))
        if cache is None:
            return self.attention(
                query,
                query_mask=key_mask if _goes_by_content(self.attention) else None,
                key_mask=key_mask,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
        used = caches_in_use(self.attention)
        if used is not None:
            return used.attend(self.attention, query, cache_update_index), cache
        if cache_update_index is None or return_attention_scores:
            raise ValueError(
                "`cache_update_index` must be given with `cache`, and `return_attention_scores` False. Received: "
                f"cache_update_index={cache_update_index}, return_attention_scores={return_attention_scores}."
            )
        if isinstance(cache, tuple):
            raise ValueError(
                "`cache` must be one tensor of keys and values, (B, 2, S, M, H). Received: a tuple. Models that "
                "generate have caches of their own: call `generate`."
            )
        step = _attend_near if _sees_a_window(self.attention) else _attend_anew
        return step(self.attention, query, key_mask, attention_mask, cache, cache_update_index)

    def compute_output_shape(self, query_shape: Shape) -> tuple[int | None, ...]:
        return self.attention.compute_output_shape(query_shape)

    def get_config(self) -> Config:
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention, "causal": self.causal}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(**{**config, "attention": keras.saving.deserialize_keras_object(config["attention"])})


def _call_mask(attention_mask: Tensor | None, query: Tensor) -> CallMask:
    """Returns the `CallMask` of a mask of pairs: one that is alike for all queries masks keys."""
    if attention_mask is None or len(attention_mask.shape) < 3 or query.shape[1] == 1:
        return CallMask(attention_mask=attention_mask)
    sizes = tuple(attention_mask.shape)
    if any(size != 1 for size in sizes[1:-1]):
        return CallMask(attention_mask=attention_mask)
    return CallMask(padding_mask=ops.reshape(attention_mask, (-1, shape(attention_mask)[-1])))


def _goes_by_content(attention: keras.layers.Layer) -> bool:
    """Whether queries are in clusters or groups too, so that padding must be no query."""
    parts = getattr(attention, "parts", [attention])
    return any(isinstance(part, ClusteredAttention) or part.pattern.by_content for part in parts)


def _sees_a_window(attention: keras.layers.Layer) -> bool:
    """Whether what a query sees lies in a window before it, so that keys and values of the window are enough."""
    if not isinstance(attention, AttentionLayer) or not supports_memory(attention):
        return False
    return getattr(attention, "window", None) is not None and attention.key_dim == attention.value_dim


def _attend_near(attention, query, key_mask, attention_mask, cache, index):
    """Returns attention to the window before `index` and the cache with the new keys and values."""
    if attention.num_key_heads != shape(cache)[3]:
        raise ValueError(
            f"`cache` must have the {attention.num_key_heads} key heads of the layer. "
            f"Received: cache of shape {tuple(cache.shape)}."
        )
    queries, keys, values = attention.project(query)
    new = ops.stack([projections.heads_first(x) for x in (keys, values)], axis=1)  # (B, 2, T, M, H)
    cache = ops.slice_update(cache, (0, 0, index, 0, 0), ops.cast(new, cache.dtype))
    batch, length, count = shape(cache)[0], shape(cache)[2], shape(query)[1]
    before = min(attention.pattern.reach, length)
    positions = ops.arange(before + count, dtype="int32") + (index - before)
    # The rows themselves: zeros before the cache would be a copy of all of it at every step.
    rows = ops.clip(positions, 0, length - 1)
    near = ops.take(cache, rows, axis=2)  # (B, 2, L + T, M, H)
    keys, values = (projections.heads_first(near[:, part]) for part in (0, 1))
    exists = merge((positions >= 0)[None], _near_part(key_mask, rows))
    masks = TokenMasks(
        key_mask=ops.broadcast_to(exists, (batch, before + count)),
        attention_mask=expand_attention_mask(_near_part(attention_mask, rows)),
        num_memory=before,
    )
    heads = queries, keys, values
    return attention.attend(query, heads, masks, causal=True, training=False, return_weights=False), cache


def _near_part(mask, rows):
    """Returns a mask (..., S) at rows (L + T,) of a cache; None of None."""
    return mask if mask is None or mask.shape[-1] == 1 else ops.take(mask, rows, axis=-1)


def _attend_anew(attention, query, key_mask, attention_mask, cache, index):
    """Returns attention of the new positions, computed for all of the sequence, and the cache with their inputs."""
    batch, _, length, heads, size = shape(cache)
    count, channels = shape(query)[1:]
    if channels > 2 * heads * size:
        raise ValueError(
            f"`cache` must have room for the {channels} channels of the query at each position: only layers with an "
            f"exact `window` keep keys and values. Received: cache of shape {tuple(cache.shape)}."
        )
    new = ops.pad(query, ((0, 0), (0, 0), (0, 2 * heads * size - channels)))
    new = ops.transpose(ops.reshape(new, (batch, count, 2, heads, size)), (0, 2, 1, 3, 4))
    cache = ops.slice_update(cache, (0, 0, index, 0, 0), ops.cast(new, cache.dtype))
    inputs = ops.reshape(ops.transpose(cache, (0, 2, 1, 3, 4)), (batch, length, 2 * heads * size))[..., :channels]
    known = ops.broadcast_to((ops.arange(length) < index + count)[None], (batch, length))
    output = attention(
        ops.cast(inputs, query.dtype),
        query_mask=merge(known, key_mask),
        attention_mask=_of_all_queries(attention_mask, length, index, count),
        use_causal_mask=True,
        training=False,
    )
    return ops.slice(output, (0, index, 0), (batch, count, shape(output)[-1])), cache


def _of_all_queries(mask, length, index, count):
    """Returns a mask (..., T, S) of the queries from `index` on as one of all queries; what others see is not used."""
    if mask is None:
        return None
    *lead, _, keys = shape(mask)
    whole = ops.ones((*lead, length, keys), dtype="bool")
    return ops.slice_update(whole, (0,) * len(lead) + (index, 0), ops.broadcast_to(mask, (*lead, count, keys)))
