"""The classifier that `config.model` describes: a new one, or one on the encoder of another model."""

import ml_collections

from tf_sparse_attention.convert.weights import rebuilt_backbone
from tf_sparse_attention.models import Backbone, Encoder, LanguageModel, SequenceClassifier
from tf_sparse_attention.trainers.shared import components
from tf_sparse_attention.trainers.shared.loading import load_model


def make_classifier(config: ml_collections.ConfigDict, vocabulary_size: int, num_classes: int) -> SequenceClassifier:
    """Returns a `SequenceClassifier`, seeded by `config.seed`.

    Raises:
        ValueError: If `config.model` lacks a size, or `config.model.start_from` holds no encoder of these token ids.
    """
    settings = components.set_values(config.model)
    head = {"pooling": settings["pooling"], "dropout": settings.get("dropout", 0.0), "dtype": config.train.dtype}
    if "start_from" in settings:
        return SequenceClassifier(_encoder_of(settings["start_from"], config, vocabulary_size), num_classes, **head)
    arguments = components.backbone_arguments(config)
    missing = [name for name in components.SIZES if name not in arguments]
    if missing:
        raise ValueError(f"`config.model` must have {', '.join(missing)}, or start_from. Received: {settings}.")
    return SequenceClassifier(Backbone(vocabulary_size, **{**arguments, "causal": False}), num_classes, **head)


def _encoder_of(path, config, vocabulary_size):
    """Returns the encoder in a file: a model of hidden tokens, a classifier, or an encoder itself."""
    model = load_model("config.model.start_from", path)
    encoder = model.backbone if isinstance(model, (LanguageModel, SequenceClassifier)) else model
    if not isinstance(encoder, (Backbone, Encoder)) or getattr(encoder, "causal", False):
        raise ValueError(
            "`config.model.start_from` must hold an `Encoder`, a bidirectional `Backbone`, or a model on one, such as "
            f"trainers/configs/clustered_text.py trains. Received: a {type(model).__name__} in {path}."
        )
    stated = [name for name in components.SIZES if config.model[name]]
    if stated:
        raise ValueError(
            f"`config.model.{stated[0]}` must be unset with config.model.start_from: the model is what it is. "
            f"Received: {stated[0]}={config.model[stated[0]]!r}."
        )
    if encoder.vocabulary_size < vocabulary_size:
        raise ValueError(
            "The tokenizer must have no more ids than the model in config.model.start_from, and be the one it was "
            f"trained with. Received: {vocabulary_size} ids, a model of {encoder.vocabulary_size}."
        )
    return rebuilt_backbone(encoder, dtype=config.train.dtype) if isinstance(encoder, Backbone) else encoder
