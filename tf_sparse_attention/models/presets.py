"""Published model sizes as plain dictionaries.

Each has its "source", the "sequence_length" it is for, the "arguments" of `Backbone` without the vocabulary, and
"initialization" where it differs from the default of the layers.
"""

from tf_sparse_attention.models.image_presets import IMAGE_ROUTING_TRANSFORMERS
from tf_sparse_attention.models.routing_transformer_presets import ROUTING_TRANSFORMERS
from tf_sparse_attention.models.sparse_transformer_presets import SPARSE_TRANSFORMERS
from tf_sparse_attention.types import Config

PRESETS = {**ROUTING_TRANSFORMERS, **IMAGE_ROUTING_TRANSFORMERS, **SPARSE_TRANSFORMERS}


def preset_arguments(name: str, reproduce_reference: bool = False) -> Config:
    """Returns the arguments of `Backbone` of a preset, all but `vocabulary_size`.

    Args:
        name: a key of `PRESETS`.
        reproduce_reference: whether routed heads work as published ("top_k"), which is not causal. Other heads are as
            published anyway.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in PRESETS:
        raise ValueError(f"`name` must be one of {sorted(PRESETS)}. Received: name={name!r}.")
    arguments = dict(PRESETS[name]["arguments"])
    published = {"selection": "top_k", "reproduce_reference": True} if reproduce_reference else {"selection": "nearest"}
    arguments["attention"] = [
        {**part, **published} if part["layer"] == "RoutingAttention" else dict(part) for part in arguments["attention"]
    ]
    return arguments
