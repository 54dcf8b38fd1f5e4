"""Drop-in sparse replacement of dense attention layers of Keras and KerasHub, with their caches.

The class is in `layers` and not in `convert`, so that saved models with it load after importing only the library.

KerasHub models pass a slice of one cache tensor to every layer. A model with replaced attention sets the caches of its
layers in a context (`using_caches`). Within this context, the layers use these caches and return the slice unchanged.
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
from tf_sparse_attention.layers.parts.call_inputs import normalize_self_attention
from tf_sparse_attention.layers.parts.segment_memory import supports_memory
from tf_sparse_attention.ops.masks import TokenMasks, expand_attention_mask, merge
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Config, Shape, Size, Tensor


@dataclasses.dataclass
class Prompt:
    """A prompt that fills the caches of a model.

    The model may insert other tokens before the prompt, such as the tokens of an image. The caches include them.

    Attributes:
        length: number of tokens of the prompt, including padding, an integer or int32 ().
        kept: number of tokens of the prompt to keep in the caches, an integer or int32 ().
        max_length: number of positions of the KerasHub caches, an integer or int32 (). None: not yet known.
        fits: whether the caches of the layers can replace the KerasHub caches.
    """

    length: Size
    kept: Size
    max_length: Size | None = None
    fits: bool = True


@dataclasses.dataclass
class CachesInUse:
    """The caches of the attention layers of a model during one call of the model.

    Attributes:
        caches: the cache of each layer, by its id, updated by the call. A prompt creates new caches. A layer that is
            not called keeps an empty dictionary.
        prompt: the prompt of the call, or None for a decoding step.
        called: the ids of the called layers, in order, with repetitions.
    """

    caches: dict[int, Any]
    prompt: Prompt | None = None
    called: list[int] = dataclasses.field(default_factory=list)

    def attend(self, layer: keras.layers.Layer, x: Tensor, index: Size) -> Tensor:
        """Compute the output (B, T, D) of an attention layer for a prompt, or for the token at `index`."""
        self.called.append(id(layer))
        if self.prompt is None:
            output, self.caches[id(layer)] = layer.extend(x, self.caches[id(layer)], index=index)
            return output
        prompt, (rows, length, _) = self.prompt, shape(x)
        max_length = length if prompt.max_length is None else prompt.max_length
        if isinstance(length, int) and isinstance(max_length, int) and length != max_length:
            prompt.fits = False  # the first decoded token would not follow the prompt
        cache = layer.init_cache(rows, max_length)
        output, self.caches[id(layer)] = layer.extend(x, cache, index=0, num_kept=prompt.kept + length - prompt.length)
        return output


_in_use: contextvars.ContextVar[CachesInUse | None] = contextvars.ContextVar("caches_in_use", default=None)


def caches_in_use(layer: keras.layers.Layer) -> CachesInUse | None:
    """Return the caches in use if the calling model set one for this attention layer, otherwise None."""
    used = _in_use.get()
    return used if used is not None and id(layer) in used.caches else None


@contextlib.contextmanager
def using_caches(
    layers: Sequence[keras.layers.Layer], caches: Sequence[Any], prompt: Prompt | None = None
) -> Iterator[CachesInUse]:
    """Set the caches of attention layers within a context.

    Args:
        layers: attention layers of this library.
        caches: the cache of each layer, an empty dictionary with a prompt.
        prompt: see `CachesInUse`.
    """
    used = CachesInUse({id(layer): cache for layer, cache in zip(layers, caches, strict=True)}, prompt)
    token = _in_use.set(used)
    try:
        yield used
    finally:
        _in_use.reset(token)


MISSING: Any = object()  # distinguishes a missing argument from None


@dataclasses.dataclass(frozen=True)
class CallMask:
    """The masks of a call, instead of one mask (B, T, S). Not a tuple: Keras would look for tensors in it.

    Attributes:
        padding_mask: bool (B, S), or None.
        attention_mask: bool, broadcastable to (B, N, T, S), or None.
        causal: whether later positions are masked.
    """

    padding_mask: Tensor | None = None
    attention_mask: Tensor | None = None
    causal: bool = False


class CallStyle(NamedTuple):
    """What distinguishes the call of an attention class from KerasHub's `CachedMultiHeadAttention`.

    Attributes:
        num_results: 2 if calls always return a pair with the cache, 3 if they return the output, the weights and the
            cache.
        has_heads_first: whether the cache is (B, 2, M, S, H).
        masks_padding: whether an attention mask of rank 2 is a padding mask (B, S).
    """

    num_results: int = 1
    has_heads_first: bool = False
    masks_padding: bool = False


CALL_STYLES = {
    "keras": CallStyle(),
    "pair": CallStyle(num_results=2),
    "triple": CallStyle(num_results=3, has_heads_first=True),  # Gemma 3n
    "padding": CallStyle(masks_padding=True),
}
# Other names of arguments, of KerasHub's attention classes.
ALIASES = {
    "hidden_states": "query",
    "inputs": "query",
    "self_attention_cache": "cache",
    "self_attention_cache_update_index": "cache_update_index",
    "position_ids": "positions",
}
# Each layer has its own cache and position encoding. SmolLM3 passes arguments of its constructor to its layers.
IGNORED = ("cache_update_mask", "alibi", "rotary_embedding", "name", "trainable", "dtype")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SwappedAttention(AdaptableMixin, keras.layers.Layer):
    """Sparse self-attention with the call signature of the attention layers of Keras and KerasHub.

    `tsa.convert.replace_attention` replaces the dense attention of a layer or model with this layer. A mask that is the
    same for all queries becomes a padding mask. Masked tokens belong to no cluster. In content-based patterns, masked
    tokens also attend to nothing.

    When a KerasHub model with replaced attention generates text, the model sets the caches of its sparse layers. The
    argument `cache` has KerasHub's format. For sliding-window layers (`LocalAttention` with `window`, `AllAttention`)
    with `value_dim` equal to `key_dim`, `cache` contains keys and values. A decoding step then costs O(window). For
    other layers, `cache` contains the inputs, and a decoding step recomputes attention for all positions.

    Args:
        attention: an attention layer of this library.
        causal: whether to mask later positions in every call, regardless of `use_causal_mask`. Default False.
        call_style: a key of `CALL_STYLES`, the call of the dense attention. Default "keras".
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        query: float (B, T, D). `hidden_states` and `inputs` are aliases, for models that use these names.
        value: None or `query`.
        key: None or `query`.
        key_mask: bool (B, S), False for masked keys.
        attention_mask: numbers or booleans, nonzero where a query may attend to a key, of rank 2 to 4, broadcastable to
            (B, N, T, S).
        use_causal_mask: whether to mask later positions.
        cache: float (B, 2, S, M, H), the cache of earlier tokens, or None. A call with a cache is causal.
        cache_update_index: integer, the position of the first query. Required with `cache`.
        cache_update_mask: ignored, as `alibi` and `rotary_embedding`.
        positions: int (B, T), or (B, C, T) with several channels, for models that give them. The output of rows in
            which they are not 0, 1, 2, ... is NaN: the layer counts positions itself.
        return_attention_scores: whether to also return the weights (B, N, T, S). Must be False with a cache.
        training: whether to apply dropout and update state.

    Returns:
        Float (B, T, D), or the pair of the output and the weights, or of the output and the new cache.

    Raises:
        ValueError: if `value` or `key` is not the query, if the shape of `cache` is invalid, or if `cache` is given
            without `cache_update_index` or with `return_attention_scores`.

    Example:
        >>> layer = SwappedAttention(LocalAttention(num_heads=2, key_dim=8, window=4))
        >>> x, cache = keras.random.normal((1, 6, 16)), keras.ops.zeros((1, 2, 6, 2, 8))
        >>> full = layer(x, x, use_causal_mask=True)
        >>> prompt, cache = layer(x[:, :5], cache=cache, cache_update_index=0)
        >>> last, cache = layer(x[:, 5:], cache=cache, cache_update_index=5)
        >>> bool(keras.ops.all(keras.ops.abs(last - full[:, 5:]) < 1e-5))
        True
    """

    def __init__(
        self,
        attention: AttentionLayer | MixedAttention,
        causal: bool = False,
        call_style: str = "keras",
        **kwargs: Any,
    ) -> None:
        checks.check_choice("call_style", call_style, tuple(CALL_STYLES))
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attention = attention
        self.causal = causal
        self.call_style = call_style

    def build(self, query_shape: Shape) -> None:
        if not self.attention.built:
            self.attention.build(query_shape)

    def __call__(
        self,
        query: Tensor | None = MISSING,
        value: Tensor | None = None,
        key: Tensor | None = None,
        *,
        attention_mask: Tensor | CallMask | None = None,
        shared_kv: None = None,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, ...]:
        kwargs = {ALIASES.get(name, name): x for name, x in kwargs.items() if name not in IGNORED}
        query = kwargs.pop("query", query)
        if query is MISSING:
            raise TypeError(f"{self.name} must be called with 'query' or 'hidden_states'.")
        if isinstance(value, CallMask):  # the second argument of Gemma 3n
            value, attention_mask = None, value
        if shared_kv is not None:
            raise ValueError(f"`shared_kv` must be None: {self.name} has its own keys and values.")
        value, key = normalize_self_attention(query, value, key)
        if value is not None:
            raise ValueError(
                f"`value` and `key` must be the query of {self.name}: {type(self.attention).__name__} replaced "
                "self-attention. For cross-attention, `make_layer` must return None."
            )
        if isinstance(attention_mask, CallMask):
            masks = attention_mask
        elif CALL_STYLES[self.call_style].masks_padding and len(getattr(attention_mask, "shape", ())) == 2:
            masks = CallMask(padding_mask=attention_mask)
        else:
            masks = _call_mask(attention_mask, query)
        for name, mask in (("key_mask", masks.padding_mask), ("attention_mask", masks.attention_mask)):
            kwargs[name] = mask if kwargs.get(name) is None else kwargs[name]
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
        positions: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        style = CALL_STYLES[self.call_style]
        if positions is not None:
            index = 0 if cache_update_index is None else cache_update_index
            query = _nan_unless_counted(query, positions, key_mask, index)
        swaps = style.has_heads_first and cache is not None
        cache = ops.swapaxes(cache, 2, 3) if swaps else cache
        masks = key_mask, attention_mask, use_causal_mask
        results = self._attend(query, *masks, cache, cache_update_index, return_attention_scores, training)
        if style.num_results == 1:
            return results
        # Without caches, a model does not read the caches of its layers.
        output, cache = (results, query[:, :1, :1]) if cache is None else results
        cache = ops.swapaxes(cache, 2, 3) if swaps else cache
        return (output, *[cache] * (style.num_results - 1))

    def _attend(
        self,
        query,
        key_mask,
        attention_mask,
        use_causal_mask,
        cache,
        cache_update_index,
        return_attention_scores,
        training,
    ):
        """Compute the output, or the pair of the output and the weights or the new cache."""
        key_mask, attention_mask = (None if x is None else ops.cast(x, "bool") for x in (key_mask, attention_mask))
        if cache is None:
            return self.attention(
                query,
                query_mask=key_mask if _is_content_based(self.attention) else None,
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
                "`cache_update_index` must be given with `cache`, without `return_attention_scores`. Received: "
                f"cache_update_index={cache_update_index}, return_attention_scores={return_attention_scores}."
            )
        if isinstance(cache, tuple):
            raise ValueError(
                "`cache` must be one tensor of keys and values, (B, 2, S, M, H). Received: a tuple. Call `generate`, "
                "which sets its own caches."
            )
        attend = _attend_with_cache if _has_exact_window(self.attention) else _recompute
        return attend(self.attention, query, key_mask, attention_mask, cache, cache_update_index)

    def compute_output_shape(self, query_shape: Shape) -> tuple[int | None, ...]:
        return self.attention.compute_output_shape(query_shape)

    def get_config(self) -> Config:
        attention = keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "attention": attention, "causal": self.causal, "call_style": self.call_style}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(**{**config, "attention": keras.saving.deserialize_keras_object(config["attention"])})


def _nan_unless_counted(query: Tensor, positions: Tensor, key_mask: Tensor | None, index: Size) -> Tensor:
    """Replace rows of queries (B, T, D) by NaN, unless their positions are `index`, `index` + 1, ... up to padding."""
    is_other = positions != ops.cast(index + ops.arange(shape(query)[1], dtype="int32"), positions.dtype)
    if len(is_other.shape) == 3:
        is_other = ops.any(is_other, axis=1)
    is_other = is_other if key_mask is None else ops.logical_and(is_other, ops.cast(key_mask, "bool"))
    return ops.where(ops.any(is_other, axis=-1)[:, None, None], float("nan"), query)


def _call_mask(attention_mask: Tensor | None, query: Tensor) -> CallMask:
    """Return the `CallMask` of a mask. A mask that is the same for all queries becomes a padding mask."""
    if attention_mask is None or len(attention_mask.shape) < 3 or query.shape[1] == 1:
        return CallMask(attention_mask=attention_mask)
    if any(size != 1 for size in tuple(attention_mask.shape)[1:-1]):
        return CallMask(attention_mask=attention_mask)
    return CallMask(padding_mask=ops.reshape(attention_mask, (-1, shape(attention_mask)[-1])))


def _is_content_based(attention: keras.layers.Layer) -> bool:
    """Return whether a layer assigns queries to clusters or groups, from which padding must be excluded."""
    parts = getattr(attention, "parts", [attention])
    return any(isinstance(part, ClusteredAttention) or part.pattern.content_based for part in parts)


def _has_exact_window(attention: keras.layers.Layer) -> bool:
    """Return whether the keys and values of a window before the query suffice."""
    if not isinstance(attention, AttentionLayer) or not supports_memory(attention):
        return False
    return getattr(attention, "window", None) is not None and attention.key_dim == attention.value_dim


def _attend_with_cache(attention, query, key_mask, attention_mask, cache, index):
    """Attend to the window before `index`, and update the cache of keys and values."""
    if attention.num_key_heads != shape(cache)[3]:
        raise ValueError(
            f"`cache` must have {attention.num_key_heads} key heads. Received: cache of shape {tuple(cache.shape)}."
        )
    queries, keys, values = attention.project(query)
    new = ops.stack([projections.heads_first(x) for x in (keys, values)], axis=1)  # (B, 2, T, M, H)
    cache = ops.slice_update(cache, (0, 0, index, 0, 0), ops.cast(new, cache.dtype))
    batch, length, count = shape(cache)[0], shape(cache)[2], shape(query)[1]
    before = min(attention.pattern.reach, length)
    positions = ops.arange(before + count, dtype="int32") + (index - before)
    # Positions are clipped, because padding the cache would copy it at every step.
    rows = ops.clip(positions, 0, length - 1)
    window = ops.take(cache, rows, axis=2)  # (B, 2, L + T, M, H)
    keys, values = (projections.heads_first(window[:, part]) for part in (0, 1))
    exists = merge((positions >= 0)[None], _take_keys(key_mask, rows))
    masks = TokenMasks(
        key_mask=ops.broadcast_to(exists, (batch, before + count)),
        attention_mask=expand_attention_mask(_take_keys(attention_mask, rows)),
        num_memory=before,
    )
    heads = queries, keys, values
    return attention.attend(query, heads, masks, causal=True, training=False, return_weights=False), cache


def _take_keys(mask, positions):
    """Select the key positions (L + T,) from a mask (..., S)."""
    return mask if mask is None or mask.shape[-1] == 1 else ops.take(mask, positions, axis=-1)


def _recompute(attention, query, key_mask, attention_mask, cache, index):
    """Recompute attention for the whole sequence, and update the cache of inputs."""
    batch, _, length, heads, size = shape(cache)
    count, channels = shape(query)[1:]
    if channels > 2 * heads * size:
        raise ValueError(
            f"`cache` must have at least {channels} channels per position, because it holds the inputs of a layer "
            f"without an exact `window`. Received: cache of shape {tuple(cache.shape)}."
        )
    new = ops.pad(query, ((0, 0), (0, 0), (0, 2 * heads * size - channels)))
    new = ops.transpose(ops.reshape(new, (batch, count, 2, heads, size)), (0, 2, 1, 3, 4))
    cache = ops.slice_update(cache, (0, 0, index, 0, 0), ops.cast(new, cache.dtype))
    inputs = ops.reshape(ops.transpose(cache, (0, 2, 1, 3, 4)), (batch, length, 2 * heads * size))[..., :channels]
    exists = ops.broadcast_to((ops.arange(length) < index + count)[None], (batch, length))
    output = attention(
        ops.cast(inputs, query.dtype),
        query_mask=merge(exists, key_mask),
        attention_mask=_extend_queries(attention_mask, length, index, count),
        use_causal_mask=True,
        training=False,
    )
    return ops.slice(output, (0, index, 0), (batch, count, shape(output)[-1])), cache


def _extend_queries(mask, length, index, count):
    """Extend a mask (..., T, S) of the queries from `index` on to all queries, whose other results are not used."""
    if mask is None:
        return None
    *lead, _, keys = shape(mask)
    whole = ops.ones((*lead, length, keys), dtype="bool")
    return ops.slice_update(whole, (0,) * len(lead) + (index, 0), ops.broadcast_to(mask, (*lead, count, keys)))
