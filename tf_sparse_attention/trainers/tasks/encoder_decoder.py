"""The encoder-decoder that `config.model` describes."""

from typing import Any

import ml_collections

from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from tf_sparse_attention.trainers.shared import components

OF_DECODER = ("cross_attention", "token_dropout")  # arguments that the encoder does not take


def make_encoder_decoder(config: ml_collections.ConfigDict, vocabulary_size: int) -> SequenceToSequence:
    """Returns a new `SequenceToSequence` with one vocabulary on both sides, seeded by `config.seed`.

    Raises:
        ValueError: If `config.model.preset` is none of an encoder-decoder.
    """
    settings, dtype = components.set_values(config.model), config.train.dtype
    arguments = components.backbone_arguments(config)
    del arguments["causal"]  # that of a decoder, not of its encoder
    source_vocabulary_size = None if settings["share_embeddings"] else vocabulary_size
    head: dict[str, Any] = {name: settings[name] for name in ("tie_embeddings", "use_output_bias")}
    if "preset" in settings:
        arguments |= {"source_vocabulary_size": source_vocabulary_size, **head}
        arguments["reproduce_reference"] = settings["reproduce_reference"]
        return SequenceToSequence.from_preset(settings["preset"], vocabulary_size, **arguments)
    decoder = Backbone(vocabulary_size, **arguments)
    arguments = {name: value for name, value in arguments.items() if name not in OF_DECODER}
    arguments["attention"] = settings["encoder_attention"] or settings["attention"]
    arguments["num_layers"] = settings.get("num_encoder_layers", settings["num_layers"])
    encoder = Backbone(source_vocabulary_size, **arguments, causal=False)
    return SequenceToSequence(encoder, LanguageModel(decoder, dtype=dtype, **head), dtype=dtype)
