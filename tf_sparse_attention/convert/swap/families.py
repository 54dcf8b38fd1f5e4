"""Attention classes of KerasHub, each described by one `Family`.

Classes are recognized by name, so KerasHub need not be installed. What an attention does not know of its model has a
case in `note_rotary_positions` (Moonshine) or in `model_reasons` (shared keys of Gemma 3n and 4, images of Qwen 3.5).

The converted layer follows the KerasHub class where it differs from the published model:
- gpt-oss (KerasHub 0.32): a query sees `sliding_window` positions before its own, one more than published. Layers with
  odd indices have the window, instead of layers with even indices.
- Gemma: rotary channels are in another order within a head. Queries and keys agree, so scores do not change.
- Qwen 2: `use_sliding_window_attention` gives all layers a window, not only the upper ones.
- Phi 3: no window, though some published models have one.
- T5Gemma: a query of the decoder sees `sliding_window` positions before its own. Layers of the encoder have no window.
- Llama, Mistral, Mixtral, Qwen and Phi apply `dropout` to the outputs of heads; the new layer applies it to attention
  weights.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.convert.swap.model_copy import layers_by_path
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.parts.projections import get_attribute, input_axis
from tf_sparse_attention.layers.parts.variables import assign_copy
from tf_sparse_attention.ops.positions import alibi_slopes
from tf_sparse_attention.types import Tensor

Layer: TypeAlias = keras.layers.Layer
Projections: TypeAlias = Mapping[str, str | tuple[str, int]]
# RoPE scaling of Llama 3: from names of `RotarySettings` to attributes of KerasHub's layer.
LLAMA3 = {
    "scaling_factor": "frequency_adjustment_factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "pretraining_sequence_length",
}
LINEAR = ("max_wavelength", "scaling_factor", "denominator_dim")
CROSS_ATTENTION = "it attends to another sequence"
ROPE = "tf_sparse_attention_rope"  # attribute for the result of `note_rotary_positions`
YARN = (*LINEAR, "beta_fast", "beta_slow", "original_max_position_embeddings", "truncate")


def _none(attention: Layer) -> None:
    return None


def _window(attention, block):
    """Return the window of an attention that has it as an attribute, or None."""
    if not getattr(attention, "use_sliding_window_attention", True):
        return None
    size = _number(attention, "sliding_window", "sliding_window_size") or None
    # Both ways, a query sees size // 2 positions after its own, and no more before it.
    return size // 2 + 1 if size and get_attribute(attention, "use_bidirectional_attention") else size


def _window_and_query(layer):
    """Return the window of a layer whose queries see `sliding_window` positions before their own."""
    return layer.sliding_window + 1 if layer.sliding_window else None


def _window_of_block(attention, block):
    slides = "Decoder" in type(block).__name__ and block.layer_type == "sliding_attention"
    return _window_and_query(block) if slides else None


def _rotary(attention):
    names = ("rotary_embedding_layer", "rope_layer", "rotary_embedding")
    rotary: Any = next((layer for name in names if (layer := get_attribute(attention, name)) is not None), None)
    if getattr(rotary, "low_freq_factor", None) is not None:
        settings = {name: getattr(rotary, theirs) for name, theirs in LLAMA3.items()}
        settings |= {"type": "llama3", "max_wavelength": rotary.max_wavelength}
    else:
        shared = YARN if rotary.rope_type == "yarn" else LINEAR
        settings = {"type": rotary.rope_type, **{name: getattr(rotary, name) for name in shared}}
    dim = getattr(attention, "rotary_dim", None)
    if dim == 0:
        return {"position": None}
    if dim is not None and dim < _key_dim(attention):
        settings["dim"] = dim
    return {"position": "rotary", **{f"rotary_{name}": value for name, value in settings.items()}}


def _rotary_su(attention):
    """Return the position of Phi 3, whose "su" factors are those of the longest sequence."""
    if attention.rope_scaling_type is None:
        return _rotary(attention)
    rotary = attention.rotary_embedding_layer
    scaling = rotary.max_sequence_length / rotary.pretraining_sequence_length
    kind = "long" if scaling > 1 else "short"
    return {
        "position": "rotary",
        "rotary_type": "longrope",
        "rotary_max_wavelength": rotary.max_wavelength,
        "rotary_scaling_factor": scaling,
        "rotary_original_max_position_embeddings": rotary.pretraining_sequence_length,
        "rotary_factors": tuple(getattr(rotary, f"inverese_freq_{kind}_factor")),
    }


def _su_remark(attention):
    if attention.rope_scaling_type is None:
        return None
    return f"in sequences of any length its RoPE factors are those of {attention.max_sequence_length} positions"


def _smol_lm3_reason(attention):
    own, size = attention.rotary_embedding.inv_freq, _key_dim(attention)
    wanted = attention.rope_theta ** (-np.arange(0, size, 2) / size)
    if own.shape == wanted.shape and np.allclose(ops.convert_to_numpy(own), wanted, rtol=1e-5, atol=0):
        return None
    return "its rotary frequencies are not those of its `rope_theta`"


def _rotary_if_used(attention):
    """Return the position of an attention that may have none, with its wavelength as an attribute."""
    if not getattr(attention, "use_rope", getattr(attention, "use_rotary", True)):
        return {"position": None}
    return {"position": "rotary", "rotary_max_wavelength": _number(attention, "rope_theta", "max_wavelength")}


def _padding_remark(attention):
    if keras.backend.backend() == "torch":
        return None
    return "KerasHub masks padded queries instead of padded keys, so results with padding differ"


def _rotary_of_model(attention):
    if not hasattr(attention, ROPE):
        raise ValueError(
            f"`attention` must be in the copy of a model that `replace_attention` makes. Received: {attention!r}."
        )
    return {"position": "rotary", **getattr(attention, ROPE)}


def _moonshine_reason(attention):
    if not attention.apply_rotary_embedding:
        return CROSS_ATTENTION
    return None if hasattr(attention, ROPE) else "its model computes the rotary positions"


def _alibi(attention):
    return {"position": "alibi", "alibi_slopes": tuple(alibi_slopes(attention.num_heads).tolist())}


def _scaled_alibi(attention):
    """Return the position of Falcon, which scales its ALiBi bias with q . k."""
    slopes = alibi_slopes(attention.num_heads) / math.sqrt(attention.head_dim)
    return {"position": "alibi", "alibi_slopes": tuple(slopes.tolist())}


def _gemma_scale(attention):
    if attention.query_head_dim_normalize:
        return None
    return 1 / math.sqrt(attention.hidden_dim // attention.num_query_heads)


def _pairs_first(attention):
    """Return the channels of a head whose rotated pairs are (2c, 2c + 1), in the order (c, c + H / 2)."""
    channels = np.arange(_key_dim(attention))
    return np.concatenate([channels[::2], channels[1::2]])


def _rotated_pairs_first(attention):
    """Return the channels of a head whose first pairs (2c, 2c + 1) are rotated, in the order (c, c + H / 2)."""
    channels = np.arange(_key_dim(attention))
    rotated = getattr(attention, ROPE)["rotary_dim"]
    return np.concatenate([channels[:rotated:2], channels[1:rotated:2], channels[rotated:]])


def _rotated_first(attention):
    """Return the channels of a head that rotates the first channels of both halves, with these channels first."""
    size, half = _key_dim(attention), attention.rotary_dim // 2
    if 2 * half == size:
        return None
    rotated = np.concatenate([np.arange(half), np.arange(half) + size // 2])
    return np.concatenate([rotated, np.setdiff1d(np.arange(size), rotated)])


def _never(attention, block):
    return False


def _one_way(attention, block):
    return not get_attribute(attention, "use_bidirectional_attention")


def _in_decoder(attention, block):
    return "Decoder" in type(block).__name__


def _shared_reason(attention):
    return "it reads keys and values of another layer" if attention.is_kv_shared_layer else None


@dataclasses.dataclass(frozen=True)
class Family:
    """An attention class of KerasHub, as data for its replacement.

    Attributes:
        window: function of the attention and its block that returns the number of positions a query sees, including its
            own, or None.
        position: function of the attention that returns the arguments of its position encoding.
        projections: for each projection of Keras's attention, the attribute of the projection; for a kernel with the
            heads of several projections, also the index of this one.
        norms: attributes of the norms of queries and keys.
        norm_offset: number that these norms add to their stored scale.
        use_value_norm: whether values are normalized.
        scale: function of the attention that returns the scale of q . k, or None for 1 / sqrt(key_dim).
        channel_order: function of the attention that returns its query channels in the order of this library, or None.
        causal: function of the attention and its block that returns whether later positions are masked.
        call_style: see `SwappedAttention`.
        reason: function of the attention that returns why it cannot be replaced, or None.
        remark: function of the attention that returns a remark for the report, or None.
        window_backend: the only backend where KerasHub applies the window. None: all.
    """

    window: Callable[[Layer, Layer | None], int | None] = _window
    position: Callable[[Layer], dict[str, Any]] = _rotary
    projections: Projections = dataclasses.field(default_factory=lambda: _projections("{}_dense", output="output"))
    norms: tuple[str, str] = ("query_norm", "key_norm")
    norm_offset: float = 0.0
    use_value_norm: bool = False
    scale: Callable[[Layer], float | None] = _none
    channel_order: Callable[[Layer], np.ndarray | None] = _none
    causal: Callable[[Layer, Layer | None], bool] = _one_way
    call_style: str = "keras"
    reason: Callable[[Layer], str | None] = _none
    remark: Callable[[Layer], str | None] = _none
    window_backend: str | None = None


def _projections(template: str, output: str = "attention_output", **names: str) -> dict[str, str | tuple[str, int]]:
    """Return `Family.projections` by a template of the attributes."""
    inputs = {name: template.format(names.get(name, name)) for name in ("query", "key", "value")}
    return {**inputs, "attention_output": template.format(output)}


FLAT = _projections("{}_proj", query="q", key="k", value="v", output="o")
OF_ENCODER = _projections("{}_dense", query="q", key="k", value="v", output="o")
FUSED: Projections = {
    "query": ("qkv_dense", 0),
    "key": ("qkv_dense", 1),
    "value": ("qkv_dense", 2),
    "attention_output": "output_dense",
}
GATED: Projections = {
    **_projections("{}_dense", output="output"),
    "query": ("query_dense", 0),
    "gate": ("query_dense", 1),
}
QWEN_NORMS = ("query_dense_layer_norm", "key_dense_layer_norm")

FAMILIES: dict[str, Family] = {
    "LlamaAttention": Family(),
    "CachedMistralAttention": Family(),
    "CachedMixtralAttention": Family(),
    "CachedGemmaAttention": Family(scale=_gemma_scale),
    "CachedGemma3Attention": Family(scale=_gemma_scale, norm_offset=1.0),
    "Gemma3nTextAttention": Family(
        projections=FLAT,
        norms=("q_norm", "k_norm"),
        use_value_norm=True,
        scale=lambda attention: 1.0,
        call_style="triple",
        reason=_shared_reason,
    ),
    "Gemma4TextAttention": Family(
        use_value_norm=True,
        scale=lambda attention: 1.0,
        channel_order=_rotated_first,
        call_style="pair",
        reason=_shared_reason,
    ),
    "T5GemmaAttention": Family(
        window=_window_of_block,
        scale=lambda attention: attention.scaling,
        causal=_in_decoder,
        call_style="pair",
        reason=lambda attention: CROSS_ATTENTION if attention.attention_type == "cross" else None,
    ),
    "QwenAttention": Family(window_backend="tensorflow"),
    "QwenMoeAttention": Family(),
    "Qwen3Attention": Family(norms=QWEN_NORMS, window_backend="tensorflow"),
    "Qwen3MoeAttention": Family(norms=QWEN_NORMS, window_backend="tensorflow"),
    "Qwen3_5Attention": Family(projections=GATED, norm_offset=1.0, window_backend="tensorflow"),
    "Phi3Attention": Family(position=_rotary_su, remark=_su_remark),
    "GptOssAttention": Family(window=lambda attention, block: _window_and_query(attention)),
    "SmolLM3Attention": Family(projections=FLAT, position=_rotary_if_used, reason=_smol_lm3_reason),
    "GPTNeoXAttention": Family(
        projections=FUSED,
        call_style="pair",
        remark=lambda attention: "KerasHub's `generate` rotates the query of a step as position 0; this layer does not",
    ),
    "BloomAttention": Family(position=_alibi),
    "FalconAttention": Family(position=_scaled_alibi),
    "MoonshineMultiHeadAttention": Family(
        position=_rotary_of_model,
        channel_order=_rotated_pairs_first,
        causal=lambda attention, block: attention.use_causal_mask,
        call_style="padding",
        reason=_moonshine_reason,
    ),
    "EsmSelfAttention": Family(
        projections=OF_ENCODER,
        position=_rotary_if_used,
        causal=_never,
        call_style="padding",
        remark=_padding_remark,
    ),
    "RoformerAttention": Family(
        projections=OF_ENCODER,
        position=_rotary_if_used,
        channel_order=_pairs_first,
        causal=_never,
        call_style="padding",
        remark=_padding_remark,
    ),
}

# Attention that no layer of this library computes, with the reason.
UNSUPPORTED = {
    "DFineMultiscaleDeformableAttention": "it samples its keys at learned positions of an image",
    "DINOV3Attention": "its rotary positions are those of image patches",
    "DisentangledSelfAttention": "it adds scores of learned relative positions",
    "FluxRoPEAttention": "it attends to a text and an image at once",
    "MobileAttention": "its keys are those of a smaller image",
    "MultiHeadAttentionWithRelativePE": "it adds scores of learned relative positions",
    "SAM3RoPEAttention": "its rotary positions are those of image patches",
    "SegFormerMultiheadAttention": "its keys are those of a smaller image",
    "T5Gemma2MergedAttention": "it attends to two sequences at once",
    "T5MultiHeadAttention": "it adds scores of learned relative positions",
    "TwoStreamRelativeAttention": "it adds scores of learned relative positions",
    "VideoPrismAttention": "it has a learned scale per channel",
    "WindowAttention": "it adds scores of learned relative positions",
}
# Blocks that use the attention of another model family with non-causal masks.
NOT_CAUSAL = ("PaliGemmaDecoderBlock",)


def family_of(layer: Layer) -> Family | None:
    """Return the `Family` of an attention of KerasHub, or None for other layers."""
    return FAMILIES.get(type(layer).__name__) if type(layer).__module__.startswith("keras_hub.") else None


def _number(attention, *names):
    """Return the first of some attributes that is a number, or None."""
    found = (get_attribute(attention, name) for name in names)
    return next((value for value in found if isinstance(value, int | float)), None)


def _num_heads(attention):
    return _number(attention, "num_query_heads", "num_attention_heads", "num_heads", "heads")


def _num_key_heads(attention):
    return _number(attention, "effective_num_kv_heads", "num_key_value_heads") or _num_heads(attention)


def _key_dim(attention):
    size = _number(attention, "head_dim", "attn_head_size", "head_size")
    return size or get_attribute(attention, "query_dense").kernel.shape[-1]


def _find_projections(attention):
    """Return each projection of an attention of KerasHub, and the index of its heads in the kernel or None, by name."""
    found = {}
    for name, source in FAMILIES[type(attention).__name__].projections.items():
        attribute, index = source if isinstance(source, tuple) else (source, None)
        found[name] = get_attribute(attention, attribute), index
    if found["value"][0] is None:  # Gemma 4 may use keys as values
        found["value"] = found["key"]
    return found


def family_arguments(attention: Layer) -> dict[str, Any]:
    """Return the arguments for a layer of this library that computes the same as an attention of KerasHub.

    Args:
        attention: a built layer with a `family_of`.

    Returns:
        Dictionary of constructor arguments, without a window.

    Raises:
        ValueError: If the layer is not built.
    """
    if not attention.built:
        raise ValueError(f"`attention` must be built, to read sizes from its weights. Received: {attention!r}.")
    family = FAMILIES[type(attention).__name__]
    projections = _find_projections(attention)
    query, output = (projections[name][0] for name in ("query", "attention_output"))
    norm, num_heads, num_key_heads = _norm(attention, "query"), _num_heads(attention), _num_key_heads(attention)
    arguments = {
        "name": attention.name,
        "dtype": keras.dtype_policies.serialize(attention.dtype_policy),
        "num_heads": num_heads,
        "num_key_value_heads": num_key_heads,
        "key_dim": _key_dim(attention),
        "dropout": _number(attention, "dropout", "attention_dropout_rate", "attention_dropout") or 0.0,
        "use_bias": query.bias is not None,
        "use_output_bias": output.bias is not None,
        "kernel_initializer": keras.initializers.serialize(query.kernel_initializer),
        "attention_scale": family.scale(attention),
        "logit_soft_cap": get_attribute(attention, "logit_soft_cap"),
        "use_sink": get_attribute(attention, "sinks") is not None,
        "use_query_key_norm": norm is not None,
    }
    if family.use_value_norm:
        arguments["use_value_norm"] = True
    if "gate" in family.projections:
        arguments["use_gate"] = True
    if norm is not None:
        arguments["query_key_norm_epsilon"] = getattr(norm, "epsilon", getattr(norm, "eps", None))
    return arguments | family.position(attention)


def family_unsupported_reason(attention: Layer) -> str | None:
    """Return why an attention of KerasHub cannot be replaced; None if it can."""
    if not attention.built:
        return "it is not built"
    if reason := FAMILIES[type(attention).__name__].reason(attention):
        return reason
    is_adapted = any(
        getattr(projection, "lora_enabled", False) for projection, _ in _find_projections(attention).values()
    )
    if is_adapted and not _has_keras_form(attention):
        return "it has LoRA weights: replace its attention first, then call `enable_lora`"
    return None


def block_reason(block: Layer) -> str | None:
    """Return why a decoder block rules out replacing its attention; None if it does not."""
    if type(block).__name__ in NOT_CAUSAL:
        return "it is bidirectional over images and prompts"
    if "vision_mask" in _input_names(block):
        return "it is bidirectional over images: for text only, create the model without its vision encoder"
    return None


def note_rotary_positions(model: Layer) -> None:
    """Give each self-attention of Moonshine the settings of the rotary positions, which its model computes."""
    for owner in layers_by_path(model).values():
        for side in ("encoder", "decoder"):
            rotary: Any = getattr(owner, f"{side}_rotary_embedding", None)
            for block in getattr(owner, f"{side}_blocks", []) if rotary is not None else []:
                attention = getattr(block, "self_attention", getattr(block, "self_attention_layer", None))
                settings = {"rotary_max_wavelength": rotary.base_value, "rotary_dim": rotary.rotary_dim}
                if attention is not None:
                    vars(attention)[ROPE] = settings


def model_reasons(model: Layer) -> dict[int, str]:
    """Return why a model rules out replacing its attention, by `id` of the attention."""
    found = {}
    for layer in layers_by_path(model).values():
        has_images = getattr(layer, "vision_encoder", None) is not None and getattr(layer, "mrope_section", None)
        sources: dict[bool, int] = {}  # the last attention with own keys, by whether it has a window
        for block in getattr(layer, "transformer_layers", []):
            attention: Any = getattr(block, "attention", getattr(block, "_self_attention_layer", None))
            if has_images:  # Qwen 3.5
                found[id(attention)] = (
                    "its rotary positions are those of images: create the model without its vision encoder"
                )
            family = family_of(attention)
            if family is None or not hasattr(attention, "is_kv_shared_layer"):
                continue
            has_window = family.window(attention, block) is not None
            if not attention.is_kv_shared_layer:
                sources[has_window] = id(attention)
            elif has_window in sources:  # Gemma 3n and 4
                found[sources[has_window]] = "other layers read its keys and values"
    return found


def _input_names(layer):
    """Return the names of a layer's symbolic inputs in the graph of a functional model."""
    try:
        return {tensor.name for tensor in keras.tree.flatten(layer.input)}
    except (AttributeError, ValueError):  # the layer is not in a graph, or is called more than once
        return set()


def keras_form(attention: Layer) -> Layer:
    """Return a layer with the projections of a dense attention, which have the names and shapes of Keras's attention.

    Args:
        attention: a built dense attention.

    Returns:
        The attention itself, or a new layer with sublayers "query", "key", "value", "attention_output" and perhaps
        "gate".
    """
    if _has_keras_form(attention):
        return attention
    sources, order = _find_projections(attention), FAMILIES[type(attention).__name__].channel_order(attention)
    form = keras.layers.Layer(name=attention.name)
    form.num_heads = _num_heads(attention)
    counts = {"key": _num_key_heads(attention), "value": _num_key_heads(attention)}
    for name, (projection, index) in sources.items():
        heads = counts.get(name, form.num_heads)
        kernel, bias = _heads_of(projection, heads, name == "attention_output")
        if index is not None:
            channels = slice(index * _key_dim(attention), (index + 1) * _key_dim(attention))
            kernel, bias = (x if x is None else x[..., channels] for x in (kernel, bias))
        if order is not None and name in ("query", "key"):
            kernel, bias = (x if x is None else ops.take(x, order, axis=-1) for x in (kernel, bias))
        setattr(form, name, _as_projection(name, kernel, bias, projection))
    return form


def _has_keras_form(attention):
    family = family_of(attention)
    if family is None:
        return True
    names = {name: projection.name for name, (projection, _) in _find_projections(attention).items()}
    return family.channel_order(attention) is None and all(name == own for name, own in names.items())


def _heads_of(projection: Layer, num_heads: int, is_output: bool) -> tuple[Tensor, Tensor | None]:
    """Return the kernel (D, N, H) and bias (N, H) of a projection, (N, H, D) and (D,) of the output projection."""
    kernel, bias = ops.convert_to_tensor(projection.kernel), projection.bias
    if is_output:
        return ops.reshape(kernel, (num_heads, -1, kernel.shape[-1])), bias
    if input_axis(projection):
        kernel = ops.moveaxis(kernel, 1, 0)
    kernel = ops.reshape(kernel, (kernel.shape[0], num_heads, -1))
    return kernel, None if bias is None else ops.reshape(bias, (num_heads, -1))


def _as_projection(name: str, kernel: Tensor, bias: Tensor | None, source: Layer) -> Layer:
    is_output = name == "attention_output"
    layer = keras.layers.EinsumDense(
        "abcd,cde->abe" if is_output else "abc,cde->abde",
        output_shape=(None, *kernel.shape[2:]) if is_output else (None, *kernel.shape[1:]),
        bias_axes=None if bias is None else "e" if is_output else "de",
        kernel_initializer="zeros",
        name=name,
        dtype=source.dtype_policy,
    )
    layer.build((None, None, *kernel.shape[:2]) if is_output else (None, None, kernel.shape[0]))
    assign_copy(layer.kernel, kernel)
    if bias is not None:
        assign_copy(layer.bias, bias)
    layer.trainable = source.trainable
    return layer


def copy_head_parts(source: Layer, target: AttentionLayer | MixedAttention) -> list[str]:
    """Copy the QK norms and sinks of an attention of KerasHub to a new layer.

    Args:
        source: the attention of KerasHub.
        target: the new layer, built, with projections already copied.

    Returns:
        Remarks for the report, as text: on the family, and on settings of the source that the target does not have.
    """
    family, wanted, first = FAMILIES[type(source).__name__], family_arguments(source), 0
    remarks = [remark for remark in [family.remark(source)] if remark]
    order = family.channel_order(source)
    for part in target.parts if isinstance(target, MixedAttention) else [target]:
        heads = slice(first, first + part.num_heads)
        first += part.num_heads
        for name, norm in part.head_norms.items():
            theirs = _norm(source, name)
            if theirs is not None:
                scale = theirs.scale + family.norm_offset
                assign_copy(norm.scale, scale if order is None else ops.take(scale, order))
        if part.head_sinks is not None and wanted["use_sink"]:
            assign_copy(part.head_sinks, source.sinks[heads])
        remarks += _differences(part, wanted, heads)
    return list(dict.fromkeys(remarks))


def _differences(layer: AttentionLayer, wanted: dict[str, Any], heads: slice) -> Iterator[str]:
    """Iterate over remarks on settings that differ between an attention of KerasHub and a new layer."""
    own = {"position": layer.position, **layer.head_settings.config()}
    if "alibi_slopes" in wanted:
        wanted = {**wanted, "alibi_slopes": wanted["alibi_slopes"][heads]}
    for name in wanted:
        if name in own and name != "num_key_value_heads" and own[name] != wanted[name]:
            yield f"{name}={own[name]!r} instead of {wanted[name]!r}"


def _norm(attention, name):
    """Return the norm of queries or keys of an attention of KerasHub, or None."""
    names = dict(zip(("query", "key"), FAMILIES[type(attention).__name__].norms, strict=True))
    return get_attribute(attention, names[name])
