"""Attention classes of KerasHub's decoders, with grouped-query heads, rotary positions, windows and sinks.

Classes are recognized by name, so KerasHub need not be installed. The converted layer follows the KerasHub class where
it differs from the published model:
- gpt-oss (KerasHub 0.32): a query sees `sliding_window` positions before its own, one more than published. Layers with
  odd indices have the window, instead of layers with even indices.
- Gemma: rotary channels are in another order within a head. Queries and keys agree, so scores do not change.
- Qwen 2: `use_sliding_window_attention` gives all layers a window, not only the upper ones.
- Phi 3: no window, though some published models have one.
- Llama, Mistral, Mixtral, Qwen and Phi apply `dropout` to the outputs of heads; the new layer applies it to attention
  weights.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.parts.projections import get_attribute
from tf_sparse_attention.layers.parts.variables import assign_copy

Window = Callable[[keras.layers.Layer], int | None]
NORMS = {"query": ("query_norm", "query_dense_layer_norm"), "key": ("key_norm", "key_dense_layer_norm")}
# RoPE scaling of Llama 3: from names of `RotarySettings` to attributes of KerasHub's layer.
LLAMA3 = {
    "scaling_factor": "frequency_adjustment_factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "pretraining_sequence_length",
}
LINEAR = ("max_wavelength", "scaling_factor", "denominator_dim")
YARN = (*LINEAR, "beta_fast", "beta_slow", "original_max_position_embeddings", "truncate")


def _no_window(attention):
    return None


def _masked_by_decoder(attention):
    return get_attribute(attention, "sliding_window")


def _size_if_used(attention):
    return attention.sliding_window_size if attention.use_sliding_window_attention else None


def _size(attention):
    return attention.sliding_window_size or None


def _positions_before(attention):
    return attention.sliding_window + 1 if attention.sliding_window else None


# By class name, a function that returns the window: the number of positions a query sees, including its own.
WINDOWS: dict[str, Window] = {
    "LlamaAttention": _no_window,
    "CachedMistralAttention": _masked_by_decoder,
    "CachedMixtralAttention": _masked_by_decoder,
    "CachedGemmaAttention": _size_if_used,
    "CachedGemma3Attention": _size_if_used,
    "QwenAttention": _size_if_used,
    "Qwen3Attention": _size,
    "Phi3Attention": _no_window,
    "GptOssAttention": _positions_before,
}

# Classes that apply their window only where KerasHub does not call Keras's fused attention: on TensorFlow.
WINDOW_ON_TENSORFLOW = ("QwenAttention", "Qwen3Attention")

# Blocks that use the attention of another model family with non-causal masks.
NOT_CAUSAL = ("PaliGemmaDecoderBlock",)


def is_decoder_attention(layer: keras.layers.Layer) -> bool:
    """Return whether a layer is the attention of a supported KerasHub decoder."""
    return type(layer).__name__ in WINDOWS and type(layer).__module__.startswith("keras_hub.")


def decoder_window(attention: keras.layers.Layer) -> int | None:
    """Return the number of positions that a query sees, including its own, or None without a window."""
    return WINDOWS[type(attention).__name__](attention)


def ignores_window(attention: keras.layers.Layer) -> bool:
    """Return whether KerasHub ignores the window of a decoder's attention on the current backend."""
    return type(attention).__name__ in WINDOW_ON_TENSORFLOW and keras.backend.backend() != "tensorflow"


def decoder_arguments(attention: keras.layers.Layer) -> dict[str, Any]:
    """Return the arguments for a layer of this library that computes the same as a decoder's attention.

    Args:
        attention: a built layer for which `is_decoder_attention` is true.

    Returns:
        Dictionary of constructor arguments, without a window.

    Raises:
        ValueError: If the layer is not built.
    """
    if not attention.built:
        raise ValueError(f"`attention` must be built, to read sizes from its weights. Received: {attention!r}.")
    query, output = get_attribute(attention, "query_dense"), get_attribute(attention, "output_dense")
    norm = _norm(attention, "query")
    arguments = {
        "name": attention.name,
        "dtype": keras.dtype_policies.serialize(attention.dtype_policy),
        "num_heads": get_attribute(attention, "num_query_heads"),
        "num_key_value_heads": get_attribute(attention, "num_key_value_heads"),
        "key_dim": query.kernel.shape[-1],
        "dropout": get_attribute(attention, "dropout"),
        "use_bias": query.bias is not None,
        "use_output_bias": output.bias is not None,
        "kernel_initializer": keras.initializers.serialize(get_attribute(attention, "kernel_initializer")),
        "attention_scale": _scale(attention),
        "logit_soft_cap": get_attribute(attention, "logit_soft_cap"),
        "use_sink": get_attribute(attention, "sinks") is not None,
        "use_query_key_norm": norm is not None,
    }
    if norm is not None:
        arguments["query_key_norm_epsilon"] = norm.epsilon
    return arguments | _rotary_arguments(
        get_attribute(attention, "rotary_embedding_layer", get_attribute(attention, "rope_layer"))
    )


def decoder_unsupported_reason(attention: keras.layers.Layer) -> str | None:
    """Return why the attention of a decoder cannot be replaced; None if it can."""
    if not attention.built:
        return "it is not built"
    if get_attribute(attention, "use_bidirectional_attention"):
        return "it is bidirectional"
    if get_attribute(attention, "rope_scaling_type") is not None:
        return f"its RoPE scaling {attention.rope_scaling_type!r} depends on the sequence length"
    return quantized_reason(attention)


def block_reason(block: keras.layers.Layer) -> str | None:
    """Return why a decoder block rules out replacing its attention; None if it does not."""
    if type(block).__name__ in NOT_CAUSAL:
        return "it is bidirectional over images and prompts"
    if "vision_mask" in _input_names(block):
        return "it is bidirectional over images: for text only, create the model without its vision encoder"
    return None


def _input_names(layer):
    """Return the names of a layer's symbolic inputs in the graph of a functional model."""
    try:
        return {tensor.name for tensor in keras.tree.flatten(layer.input)}
    except (AttributeError, ValueError):  # the layer is not in a graph, or is called more than once
        return set()


def quantized_reason(attention: keras.layers.Layer) -> str | None:
    """Return why a dense attention with quantized kernels cannot be replaced; None if its kernels are not quantized."""
    parts = [get_attribute(attention, f"{name}_dense") for name in ("query", "key", "value", "output")]
    if any(getattr(part, "quantization_mode", None) for part in parts):  # a subclass may have other parts
        return "it is quantized: replace its attention first, then call `quantize`"
    return None


def copy_head_parts(source: keras.layers.Layer, target: AttentionLayer | MixedAttention) -> list[str]:
    """Copy the QK norms and sinks of a decoder's attention to a new layer.

    Args:
        source: the decoder's attention.
        target: the new layer, built, with projections already copied.

    Returns:
        Remarks on settings of the source that the target does not have, as text.
    """
    remarks: list[str] = []
    wanted, first = decoder_arguments(source), 0
    for part in target.parts if isinstance(target, MixedAttention) else [target]:
        heads = slice(first, first + part.num_heads)
        first += part.num_heads
        for name, norm in part.head_norms.items():
            theirs = _norm(source, name)
            if theirs is not None:
                assign_copy(norm.scale, _norm_scale(theirs))
        if part.head_sinks is not None and wanted["use_sink"]:
            assign_copy(part.head_sinks, source.sinks[heads])
        remarks += _differences(part, wanted)
    return list(dict.fromkeys(remarks))


def _differences(layer: AttentionLayer, wanted: dict[str, Any]) -> Iterator[str]:
    """Iterate over remarks on settings that differ between a decoder's attention and a new layer."""
    own = {"position": layer.position, **layer.head_settings.config()}
    for name in wanted:
        if name in own and name != "num_key_value_heads" and own[name] != wanted[name]:
            yield f"{name}={own[name]!r} instead of {wanted[name]!r}"


def _norm(attention, name):
    """Return the norm of queries or keys of a decoder's attention, or None."""
    return next((norm for part in NORMS[name] if (norm := get_attribute(attention, part)) is not None), None)


def _norm_scale(norm):
    """Return the scale of a norm; KerasHub's `RMSNormalization` of Gemma stores scale - 1, Keras's layer the scale."""
    beyond_one = type(norm).__name__ == "RMSNormalization" and not isinstance(norm, keras.layers.RMSNormalization)
    return norm.scale + 1 if beyond_one else norm.scale


def _scale(attention):
    """Return the scale of attention logits, or None for the default 1 / sqrt(key_dim)."""
    if get_attribute(attention, "query_head_dim_normalize", True):
        return None
    return 1 / math.sqrt(attention.hidden_dim // attention.num_query_heads)


def _rotary_arguments(rotary):
    """Return the RoPE arguments that match KerasHub's rotary embedding layer."""
    if getattr(rotary, "low_freq_factor", None) is not None:
        settings = {name: getattr(rotary, theirs) for name, theirs in LLAMA3.items()}
        settings |= {"type": "llama3", "max_wavelength": rotary.max_wavelength}
    else:
        names = YARN if rotary.rope_type == "yarn" else LINEAR
        settings = {"type": rotary.rope_type, **{name: getattr(rotary, name) for name in names}}
    return {"position": "rotary", **{f"rotary_{name}": value for name, value in settings.items()}}
