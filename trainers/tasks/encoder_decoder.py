"""The encoder-decoder that `config.model` describes."""

from typing import Any

import ml_collections

from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from trainers.shared import components

# Settings of `config.model` that are those of both sides.
OF_BOTH: tuple[str, ...] = (
    "num_layers",
    "hidden_dim",
    "embedding_dim",
    "intermediate_dim",
    "activation",
    "num_local_layers",
    "norm",
)
OF_BOTH += ("dropout", "embedding_dropout", "activation_dropout", "layer_norm_epsilon", "remat")


OF_HEAD: tuple[str, ...] = ("tie_embeddings", "use_output_bias")


def make_encoder_decoder(config: ml_collections.ConfigDict, vocabulary_size: int) -> SequenceToSequence:
    """Returns a new `SequenceToSequence` with one vocabulary on both sides, seeded by `config.seed`.

    Raises:
        ValueError: If `config.model.preset` is none of an encoder-decoder.
    """
    settings, dtype = components.set_values(config.model), config.train.dtype
    common: dict[str, Any] = {name: settings[name] for name in OF_BOTH if name in settings}
    common |= {"seed": config.seed, "dtype": dtype}
    head: dict[str, Any] = {name: settings[name] for name in OF_HEAD}
    source_vocabulary_size = None if settings["share_embeddings"] else vocabulary_size
    if "preset" in settings:
        for name in ("attention", "cross_attention", "token_dropout"):
            if settings.get(name):
                common[name] = settings[name]
        common |= {"source_vocabulary_size": source_vocabulary_size, **head}
        common["reproduce_reference"] = settings["reproduce_reference"]
        return SequenceToSequence.from_preset(settings["preset"], vocabulary_size, **common)
    encoder = common | {"attention": settings["encoder_attention"] or settings["attention"]}
    encoder["num_layers"] = settings.get("num_encoder_layers", settings["num_layers"])
    decoder = Backbone(
        vocabulary_size,
        **common,
        attention=settings["attention"],
        cross_attention=settings["cross_attention"],
        token_dropout=settings.get("token_dropout", 0.0),
    )
    return SequenceToSequence(
        Backbone(source_vocabulary_size, **encoder, causal=False),
        LanguageModel(decoder, dtype=dtype, **head),
        dtype=dtype,
    )
