"""Creates the objects that a configuration describes: data, model, optimizer."""

import inspect
from typing import Any

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.trainers.shared.backbone_settings import backbone_arguments, set_values
from tf_sparse_attention.trainers.shared.overrides import SOURCE_SETTINGS
from tf_sparse_attention.trainers.shared.start_from import start_from

OPTIMIZERS = {
    "adafactor": tsa.optimizers.Adafactor,
    "adagrad": tsa.optimizers.Adagrad,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
}
PAIR_SETTINGS = ("tfds", "path", "local_dir", "data_dir", "unit", "target_end")
LABELED_SETTINGS = ("text_feature", "label_feature", "tfds", "path", "local_dir", "data_dir")
SIZES = ("num_layers", "hidden_dim", "attention")  # settings that a new model needs
# Required settings by schedule.
SCHEDULES = {
    "constant": (),
    "rsqrt_normalized_decay": ("warmup_steps",),
    "rsqrt_with_linear_warmup": ("warmup_steps",),
    "noam": ("warmup_steps",),
    "cosine": ("warmup_steps",),
}


def make_text_source(config: ml_collections.ConfigDict) -> Any:
    """Returns the `TextSource` that `config.data` names."""
    settings = set_values(config.data)
    return tsa.data.open_source(**{name: settings[name] for name in SOURCE_SETTINGS if name in settings})


def make_pair_source(config: ml_collections.ConfigDict) -> tsa.data.PairSource:
    """Returns the two texts that `config.data` names."""
    settings = set_values(config.data)
    options = {name: settings[name] for name in PAIR_SETTINGS if name in settings}
    return tsa.data.open_pairs(settings["source_field"], settings["target_field"], **options)


def make_labeled_source(config: ml_collections.ConfigDict) -> tsa.data.LabeledSource:
    """Returns the texts with labels that `config.data` names."""
    settings = set_values(config.data)
    return tsa.data.open_labeled(**{name: settings[name] for name in LABELED_SETTINGS if name in settings})


def make_batches(config: ml_collections.ConfigDict, store: Any) -> tsa.data.Batches:
    """Returns the batches of a token store that `config` describes: windows, or consecutive segments."""
    data = config.data
    sizes = {"batch_size": data.batch_size, "sequence_length": data.sequence_length}
    if config.model.memory_length:
        return tsa.data.segment_batches(store, **sizes, seed=config.seed, use_packing=data.use_packing)
    return tsa.data.training_batches(
        store, **sizes, seed=config.seed, use_packing=data.use_packing, mask_rate=data.mask_rate
    )


def make_model(config: ml_collections.ConfigDict, vocabulary_size: int) -> keras.Model:
    """Returns a `LanguageModel`: a new one, seeded by `config.seed`, or that of the file `config.model.start_from`.

    Raises:
        ValueError: If `config.model` lacks a size, or has a wrong one, or there is no such file.
    """
    settings = set_values(config.model)
    if "start_from" in settings:
        _check_objective(config)
        return start_from(settings["start_from"], config, vocabulary_size)
    arguments, initialization = backbone_arguments(config), settings.get("initialization")
    head = {name: settings[name] for name in ("tie_embeddings", "use_output_bias")}
    _check_objective(config)
    if initialization not in (None, "depth"):
        raise ValueError(f"`config.model.initialization` must be None or 'depth'. Received: {initialization!r}.")
    missing = [name for name in SIZES if not settings.get(name)]
    if "preset" in settings:
        reproduce = settings["reproduce_reference"]
        model = LanguageModel.from_preset(settings["preset"], vocabulary_size, reproduce, **head, **arguments)
    elif missing:
        raise ValueError(f"`config.model` must have a preset or {', '.join(missing)}. Received: {settings}.")
    else:
        model = LanguageModel(Backbone(vocabulary_size, **arguments), dtype=config.train.dtype, **head)
    if initialization == "depth":
        tsa.models.initialize_by_depth(model, config.seed)
    return model


def with_memory(model: Any, batch_size: int) -> Any:
    """Returns what `fit` and `predict` are called on: the model, or a `StatefulModel` of one with segment memory."""
    if not getattr(getattr(model, "backbone", None), "memory_length", 0):
        return model
    return tsa.models.StatefulModel(model, batch_size, name="reader")  # part of variable paths in checkpoints


def _check_objective(config):
    """Raises a `ValueError` unless `causal`, `memory_length` and `mask_rate` are compatible."""
    if config.model.causal == bool(config.data.mask_rate):
        raise ValueError(
            "`config.data.mask_rate` must be positive with config.model.causal=False, whose targets are hidden tokens, "
            f"and 0 otherwise. Received: mask_rate={config.data.mask_rate}, causal={config.model.causal}."
        )
    if config.model.memory_length and config.data.mask_rate:
        raise ValueError("`config.model.memory_length` must be 0 with a mask rate. Received: both.")


def make_schedule(config: ml_collections.ConfigDict, hidden_dim: int) -> Any:
    """Returns the learning rate that `config.optimizer` describes.

    Raises:
        ValueError: For an unknown schedule, or one without its required steps.
    """
    settings = config.optimizer
    rate, warmup = settings.learning_rate, settings.warmup_steps
    if settings.schedule not in SCHEDULES:
        raise ValueError(
            f"`config.optimizer.schedule` must be one of {', '.join(SCHEDULES)}. Received: {settings.schedule}."
        )
    needed = SCHEDULES[settings.schedule]
    missing = [name for name in needed if settings[name] is None]
    if missing:
        raise ValueError(
            f"`config.optimizer.{missing[0]}` must be given for the schedule {settings.schedule}. Received: None."
        )
    if settings.schedule == "constant":
        return tsa.optimizers.Constant(rate, warmup or 0)
    if settings.schedule == "noam":
        return tsa.optimizers.Noam(hidden_dim, warmup, scale=rate)
    if settings.schedule == "cosine":
        decay = settings.decay_steps or max(config.train.num_steps - warmup, 1)
        return keras.optimizers.schedules.CosineDecay(0.0, decay, warmup_target=rate, warmup_steps=warmup, alpha=0.0)
    return tsa.optimizers.RsqrtNormalizedDecay(
        rate, warmup, use_linear_warmup=settings.schedule == "rsqrt_with_linear_warmup"
    )


def make_optimizer(config: ml_collections.ConfigDict, hidden_dim: int) -> keras.optimizers.Optimizer:
    """Returns the optimizer that `config.optimizer` describes, which also measures the norm of the gradient.

    Raises:
        ValueError: For an unknown name, or a setting that this optimizer does not have.
    """
    settings = set_values(config.optimizer)
    name = settings.pop("name")
    if name not in OPTIMIZERS:
        raise ValueError(f"`config.optimizer.name` must be one of {', '.join(OPTIMIZERS)}. Received: {name}.")
    for used in ("learning_rate", "schedule", "warmup_steps", "decay_steps"):
        settings.pop(used, None)
    base = OPTIMIZERS[name]
    known = {*inspect.signature(base).parameters, *inspect.signature(keras.optimizers.Optimizer).parameters}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(
            f"`config.optimizer.{unknown[0]}` must be unset for {name}, which has no such argument. "
            f"Received: {settings[unknown[0]]}."
        )
    careful = [tsa.optimizers.SkipNonfinite] if config.train.nonfinite == "skip" else []
    measured = type(f"Measured{base.__name__}", (*careful, tsa.optimizers.GradientNorm, base), {})
    return measured(make_schedule(config, hidden_dim), **settings)
