"""Text generation of KerasHub's models with the caches of the attention that was put into them."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from keras import ops

from tf_sparse_attention.layers.attention.swapped_attention import Prompt, SwappedAttention, caches_in_use, using_caches
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Size, Tensor

# The methods of a model that generates: what they are given and return is the same in all of KerasHub's decoders.
METHODS = ("generate_step", "_build_cache", "call_with_cache")
_tokens_before: contextvars.ContextVar[Size | None] = contextvars.ContextVar("tokens_before", default=None)


class SwappedGeneration:
    """Mixin for the class of a KerasHub model that generates: its caches are those of the replaced attention.

    KerasHub allocates a cache of the whole length for every layer and writes the prompt into it, padding included. A
    window needs its own length of it, a pattern by content keeps other things. So the cache of this model is a
    dictionary: of what the model itself handles, and of the caches of the layers, which go up to the token that the
    first step computes. Samplers take it as it is. Where a layer cannot decode with a cache or stands in several
    places, or a model generates in another way, KerasHub's own caches are used.
    """

    def generate_step(self, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        lengths = ops.sum(ops.cast(inputs["padding_mask"], "int32"), axis=-1)
        # The first step computes the last token that all prompts have again.
        with prompt_length_scope(ops.maximum(ops.min(lengths) - 1, 0)):
            return super().generate_step(inputs, *args, **kwargs)  # type: ignore[misc]

    def _build_cache(self, token_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        kept, layers = _tokens_before.get(), _attention_layers(self)
        if kept is None or any(layer.cache_unsupported_reason for layer in layers):
            return super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        prompt = Prompt(shape(token_ids)[1], kept)
        with using_caches(layers, [{}] * len(layers), prompt) as used:
            hidden_states, own = super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        # A layer has one cache, for one place in the model.
        if not prompt.fits or len(used.called) > len(set(used.called)):
            return super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        if len(used.called) < len(layers):  # the others are in encoders
            own = _placeholder_cache(own, len(used.called))
        return hidden_states, {"model": own, "layers": [used.caches[id(layer)] for layer in layers]}

    def call_with_cache(
        self, token_ids: Tensor, cache: Any, cache_update_index: Size, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Any]:
        call = super().call_with_cache  # type: ignore[misc]
        layers = _attention_layers(self)
        if not isinstance(cache, dict):
            in_use = caches_in_use(layers[0]) if layers else None
            if in_use is not None:
                if in_use.prompt is not None:
                    in_use.prompt.max_length = _max_length(cache)
                cache = _placeholder_cache(cache, len(layers))
            return call(token_ids, cache, cache_update_index, *args, **kwargs)
        with using_caches(layers, cache["layers"]) as used:
            logits, hidden_states, own = call(token_ids, cache["model"], cache_update_index, *args, **kwargs)
        return logits, hidden_states, {"model": own, "layers": [used.caches[id(layer)] for layer in layers]}


def generates(model_class: type) -> bool:
    """Returns whether a class is one of a model that generates with caches, as KerasHub's `CausalLM`s do."""
    return all(hasattr(model_class, name) for name in METHODS)


@contextlib.contextmanager
def prompt_length_scope(length: Size) -> Iterator[None]:
    """Context in which caches are made for prompts that have so many tokens before the first step."""
    token = _tokens_before.set(length)
    try:
        yield
    finally:
        _tokens_before.reset(token)


def _attention_layers(model):
    """Returns the attention layers of this library that stand where dense ones stood, each once."""
    found = (layer.attention for layer in model._flatten_layers() if isinstance(layer, SwappedAttention))
    return list({id(layer): layer for layer in found}.values())


def _max_length(cache):
    """Returns the positions of a cache of KerasHub: of all layers in one tensor, or a pair for each layer."""
    return shape(cache[0][0])[1] if isinstance(cache, tuple) else shape(cache)[3]


def _placeholder_cache(cache, num_layers):
    """Returns what layers get in place of their parts of a cache, of which they need nothing: one number a row.

    Where other attention is left in the model, it is the cache itself.
    """
    is_tuple = isinstance(cache, tuple)  # a pair of keys and values for each layer
    if (len(cache) if is_tuple else cache.shape[1]) != num_layers:
        return cache
    if is_tuple:
        return tuple((key[:, :1, 0, 0], value[:, :1, 0, 0]) for key, value in cache)
    return cache[:, :, 0, 0, 0, 0][..., None]
