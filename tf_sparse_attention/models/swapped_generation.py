"""Text generation of KerasHub models with the KV caches of replaced attention."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from keras import ops

from tf_sparse_attention.layers.attention.swapped_attention import Prompt, SwappedAttention, caches_in_use, using_caches
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Size, Tensor

# Methods of generating models, with the same arguments and results in all KerasHub decoders.
METHODS = ("generate_step", "_build_cache", "call_with_cache")
_tokens_before: contextvars.ContextVar[Size | None] = contextvars.ContextVar("tokens_before", default=None)


class SwappedGeneration:
    """Mixin for generating KerasHub models that uses the KV caches of replaced attention.

    KerasHub allocates a cache of the full length for every layer, and writes the prompt into it, including padding. A
    window needs fewer positions, and content-based patterns cache other tensors. So this model returns a dictionary
    instead: "model" is the cache of KerasHub, and "layers" are the caches of the replaced layers for the tokens before
    the first step. KerasHub samplers accept this dictionary. The KerasHub caches are used if a layer cannot decode
    with a cache, is called several times per pass, or has a prompt of another length than the KerasHub cache.
    """

    def generate_step(self, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        lengths = ops.sum(ops.cast(inputs["padding_mask"], "int32"), axis=-1)
        # The first step recomputes the last token that all prompts have.
        with prompt_length_scope(ops.maximum(ops.min(lengths) - 1, 0)):
            return super().generate_step(inputs, *args, **kwargs)  # type: ignore[misc]

    def _build_cache(self, token_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        length, layers = _tokens_before.get(), _attention_layers(self)
        if length is None or any(layer.cache_unsupported_reason for layer in layers):
            return super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        prompt = Prompt(shape(token_ids)[1], length)
        with using_caches(layers, [{}] * len(layers), prompt) as used:
            hidden_states, model_cache = super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        # A layer has only one cache, so it must be called only once.
        if not prompt.fits or len(used.called) > len(set(used.called)):
            return super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        if len(used.called) < len(layers):  # the other layers are in encoders
            model_cache = _placeholder_cache(model_cache, len(used.called))
        return hidden_states, {"model": model_cache, "layers": [used.caches[id(layer)] for layer in layers]}

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
            logits, hidden_states, model_cache = call(token_ids, cache["model"], cache_update_index, *args, **kwargs)
        return logits, hidden_states, {"model": model_cache, "layers": [used.caches[id(layer)] for layer in layers]}


def generates(model_class: type) -> bool:
    """Return whether models of a class generate with caches, like `CausalLM` of KerasHub."""
    return all(hasattr(model_class, name) for name in METHODS)


@contextlib.contextmanager
def prompt_length_scope(length: Size) -> Iterator[None]:
    """Create caches in this context for prompts with `length` tokens before the first step."""
    token = _tokens_before.set(length)
    try:
        yield
    finally:
        _tokens_before.reset(token)


def _attention_layers(model):
    """Return the attention layers that replaced dense attention, without duplicates."""
    attentions = (layer.attention for layer in model._flatten_layers() if isinstance(layer, SwappedAttention))
    return list({id(layer): layer for layer in attentions}.values())


def _max_length(cache):
    """Return the length of a KerasHub cache: one tensor for all layers, or a pair per layer."""
    return shape(cache[0][0])[1] if isinstance(cache, tuple) else shape(cache)[3]


def _placeholder_cache(cache, num_layers):
    """Return a small placeholder for a KerasHub cache that replaced layers ignore: one number per row.

    If the model also has dense attention, return the cache itself.
    """
    is_tuple = isinstance(cache, tuple)  # a pair of keys and values per layer
    if (len(cache) if is_tuple else cache.shape[1]) != num_layers:
        return cache
    if is_tuple:
        return tuple((key[:, :1, 0, 0], value[:, :1, 0, 0]) for key, value in cache)
    return cache[:, :, 0, 0, 0, 0][..., None]
