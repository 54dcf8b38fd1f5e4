"""Published model sizes as plain dictionaries.

Keys of a preset: "source", "sequence_length", "arguments" of `Backbone` without `vocabulary_size`, and "initialization"
if it is not the default. Presets of encoder-decoders have arguments for "encoder" and "decoder" instead. Their
"cross_attention" has the same number of local blocks as "attention".
"""

import dataclasses
from typing import Any

from tf_sparse_attention.models.attention_parts import list_block_parts, map_parts
from tf_sparse_attention.models.backbone_options import (
    AttentionOptions,
    DropoutOptions,
    EmbeddingOptions,
    as_options,
    merge_arguments,
)
from tf_sparse_attention.models.published_sizes import (
    DECODERS,
    IMAGE_ROUTING_TRANSFORMERS,
    ROUTING_TRANSFORMERS,
    SPARSE_TRANSFORMERS,
    TRANSLATORS,
)
from tf_sparse_attention.types import Config

PRESETS = {**ROUTING_TRANSFORMERS, **IMAGE_ROUTING_TRANSFORMERS, **SPARSE_TRANSFORMERS}
DECODER_PRESETS = {**DECODERS}
TRANSLATION_PRESETS = {**TRANSLATORS}


def preset_arguments(name: str, reproduce_reference: bool = False, **overrides: Any) -> Config:
    """Return the arguments of `Backbone` of a preset, without `vocabulary_size`.

    Args:
        name: a key of `PRESETS` or `DECODER_PRESETS`.
        reproduce_reference: whether routed heads select as published ("top_k"), which is not causal. Default False:
            routed heads select "nearest".
        **overrides: arguments that replace arguments of the preset. A dictionary for `attention`, `embedding`, `norm`
            or `dropout` changes only the options that it names.

    Raises:
        ValueError: if `name` is unknown.
    """
    presets = PRESETS | DECODER_PRESETS
    if name not in presets:
        raise ValueError(f"`name` must be one of {sorted(presets)}. Received: name={name!r}.")
    arguments = dict(presets[name]["arguments"])
    arguments["attention"] = _routed(arguments["attention"], "nearest", reproduce_reference)
    return merge_arguments(arguments, overrides)


def translation_arguments(name: str, reproduce_reference: bool = False, **overrides: Any) -> tuple[Config, Config]:
    """Return the arguments of `Backbone` of the encoder and of the decoder of a preset, without `vocabulary_size`.

    Args:
        name: a key of `TRANSLATION_PRESETS`.
        reproduce_reference: whether routed heads select as published and padding is masked only as keys. The model is
            then not causal. Default False: routed heads select "nearest" in the decoder, "top_keys" in its
            cross-attention, and "top_k" in the encoder.
        **overrides: arguments that replace arguments of both sides of the preset, as in `preset_arguments`.
            `cross_attention`, `dim` of `embedding` and `tokens` of `dropout` only change the decoder.

    Raises:
        ValueError: if `name` is unknown.
    """
    if name not in TRANSLATION_PRESETS:
        raise ValueError(f"`name` must be one of {sorted(TRANSLATION_PRESETS)}. Received: name={name!r}.")
    preset, padding = TRANSLATION_PRESETS[name], {"reproduce_reference": reproduce_reference}
    encoder, decoder = dict(preset["encoder"]), dict(preset["decoder"])
    encoder["attention"] = _routed(encoder["attention"], "top_k", reproduce_reference) | padding
    decoder["attention"] = _routed(decoder["attention"], "nearest", reproduce_reference) | padding
    across = _routed({"parts": decoder.pop("cross_attention")}, "top_keys", reproduce_reference)["parts"]
    decoder = merge_arguments(decoder, overrides)
    if "cross_attention" not in decoder:
        num_local_layers = as_options(AttentionOptions, "attention", decoder["attention"]).num_local_layers
        decoder["cross_attention"] = list_block_parts(across, decoder["num_layers"], num_local_layers)
    overrides = {name: value for name, value in overrides.items() if name != "cross_attention"}
    encoder = merge_arguments({"embedding": None, **encoder}, overrides)
    embedding = as_options(EmbeddingOptions, "embedding", encoder["embedding"])
    dropout = as_options(DropoutOptions, "dropout", encoder["dropout"])
    changes = {
        "embedding": dataclasses.replace(embedding, dim=None),
        "dropout": dataclasses.replace(dropout, tokens=0.0),
    }
    return {**encoder, **changes}, decoder


def _routed(attention, selection, reproduce_reference):
    """Return attention options as a dictionary, with `selection` or the published selection of routed heads."""
    chosen = {"selection": "top_k", "reproduce_reference": True} if reproduce_reference else {"selection": selection}
    options = vars(as_options(AttentionOptions, "attention", attention))
    parts = map_parts(
        lambda part: {**part, **chosen} if part["layer"] == "RoutingAttention" else dict(part), options["parts"]
    )
    return {**options, "parts": parts}
