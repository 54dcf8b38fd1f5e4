"""Published model sizes as plain dictionaries.

Each has its "source", the "sequence_length" it is for, the "arguments" of `Backbone` without the vocabulary, and
"initialization" where it differs from the default of the layers. Those of encoder-decoders have the arguments of both
sides, "encoder" and "decoder", whose "cross_attention" has as many local blocks as "attention".
"""

from typing import Any

from tf_sparse_attention.models.attention_parts import parts_of_blocks
from tf_sparse_attention.models.decoder_presets import DECODERS
from tf_sparse_attention.models.image_presets import IMAGE_ROUTING_TRANSFORMERS
from tf_sparse_attention.models.routing_transformer_presets import ROUTING_TRANSFORMERS, TRANSLATORS
from tf_sparse_attention.models.sparse_transformer_presets import SPARSE_TRANSFORMERS
from tf_sparse_attention.types import Config

PRESETS = {**ROUTING_TRANSFORMERS, **IMAGE_ROUTING_TRANSFORMERS, **SPARSE_TRANSFORMERS}
DECODER_PRESETS = {**DECODERS}
TRANSLATION_PRESETS = {**TRANSLATORS}
OF_DECODER = ("embedding_dim", "token_dropout", "cross_attention")  # arguments that its encoder does not take


def preset_arguments(name: str, reproduce_reference: bool = False) -> Config:
    """Returns the arguments of `Backbone` of a preset, all but `vocabulary_size`.

    Args:
        name: a key of `PRESETS` or `DECODER_PRESETS`.
        reproduce_reference: whether routed heads work as published ("top_k"), which is not causal. Other heads are as
            published anyway.

    Raises:
        ValueError: for an unknown name.
    """
    presets = PRESETS | DECODER_PRESETS
    if name not in presets:
        raise ValueError(f"`name` must be one of {sorted(presets)}. Received: name={name!r}.")
    arguments = dict(presets[name]["arguments"])
    if name in PRESETS:
        arguments["attention"] = _routed(arguments["attention"], "nearest", reproduce_reference)
    return arguments


def translation_arguments(
    name: str, reproduce_reference: bool = False, **overrides: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of `Backbone` of the encoder and of the decoder of a preset, all but `vocabulary_size`.

    Args:
        name: a key of `TRANSLATION_PRESETS`.
        reproduce_reference: whether routed heads and padding work as published, which is not causal. Otherwise routed
            heads are "nearest" in the decoder, "top_keys" across, and "top_k" in the encoder.
        **overrides: arguments of both that replace the preset's; those of `OF_DECODER` of the decoder alone.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in TRANSLATION_PRESETS:
        raise ValueError(f"`name` must be one of {sorted(TRANSLATION_PRESETS)}. Received: name={name!r}.")
    preset, common = TRANSLATION_PRESETS[name], {"reproduce_reference": reproduce_reference}
    encoder, decoder = ({**preset[side], **common} for side in ("encoder", "decoder"))
    encoder["attention"] = _routed(encoder["attention"], "top_k", reproduce_reference)
    decoder["attention"] = _routed(decoder["attention"], "nearest", reproduce_reference)
    across = _routed(decoder["cross_attention"], "top_keys", reproduce_reference)
    encoder |= {name: value for name, value in overrides.items() if name not in OF_DECODER}
    decoder |= overrides
    if "cross_attention" not in overrides:
        decoder["cross_attention"] = parts_of_blocks(across, decoder["num_layers"], decoder["num_local_layers"])
    return encoder, decoder


def _routed(attention, selection, reproduce_reference):
    """Returns parts of an attention with routed heads of a selection, or as published."""
    chosen = {"selection": "top_k", "reproduce_reference": True} if reproduce_reference else {"selection": selection}
    return [{**part, **chosen} if part["layer"] == "RoutingAttention" else dict(part) for part in attention]
