"""Settings of the data, model, tokenizer and optimizer of a configuration."""

import inspect
import os
from collections.abc import Iterator
from typing import Any

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention import checks
from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.backbone_options import GROUPS, as_options
from tf_sparse_attention.models.presets import preset_arguments
from tf_sparse_attention.models.rebuilding import rebuilt
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared.loading import load_language_model
from tf_sparse_attention.types import Config

# Settings with the same name as the argument.
ARGUMENTS = (
    *("num_layers", "hidden_dim", "intermediate_dim", "activation", "causal", "memory_length", "remat"),
    "cross_attention",
)
# {group of options of `Backbone`: {option: setting}}
OPTIONS = {
    "attention": {"parts": "attention", "num_local_layers": "num_local_layers"},
    "embedding": {"dim": "embedding_dim", "grid": "grid", "sinusoidal": "sinusoidal"},
    "norm": {"placement": "norm", "epsilon": "layer_norm_epsilon"},
    "dropout": {
        "residual": "dropout",
        "embedding": "embedding_dropout",
        "activation": "activation_dropout",
        "tokens": "token_dropout",
    },
}
ALWAYS_COMPARED = ("memory_length", "causal")  # the trainer reads them from the configuration
NOT_COMPARED = ("start_from", "preset", "reproduce_reference", "initialization")
OPTIMIZERS = {
    "adafactor": tsa.optimizers.Adafactor,
    "adagrad": tsa.optimizers.Adagrad,
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
}
SIZES = ("num_layers", "hidden_dim", "attention")  # required settings of a new model
SCHEDULES = ("constant", "rsqrt_normalized_decay", "rsqrt_with_linear_warmup", "noam", "cosine")
# Further settings that `make_model` reads for a language model, except `memory_length`.
LANGUAGE_MODEL = (
    *("start_from", "preset", "reproduce_reference", "causal", "grid", "initialization"),
    *("tie_embeddings", "use_output_bias"),
)
SAMPLING = ("temperature", "top_p")  # settings of `config.generate`


def set_values(section: ml_collections.ConfigDict) -> dict[str, Any]:
    """Return the settings of a section that are not None, as a plain dictionary."""
    return {name: value for name, value in section.to_dict().items() if value is not None}


def data_settings(config: ml_collections.ConfigDict, *names: str) -> dict[str, Any]:
    """Return the settings of `config.data` that locate the data, and further settings by name, if they are not None."""
    settings = set_values(config.data)
    return {name: settings[name] for name in ("tfds", "path", "local_dir", "data_dir", *names) if name in settings}


def backbone_arguments(config: ml_collections.ConfigDict) -> Config:
    """Return the arguments of `Backbone` for a configuration, without the vocabulary size."""
    settings = {name: value for name, value in set_values(config.model).items() if value not in ([], ())}
    arguments = {name: settings[name] for name in ARGUMENTS if name in settings}
    for group, names in OPTIONS.items():
        if options := {option: settings[name] for option, name in names.items() if name in settings}:
            arguments[group] = options
    return {**arguments, "seed": config.seed, "dtype": config.train.dtype}


def settings_from_arguments(arguments: Config) -> dict[str, Any]:
    """Return the settings of `config.model` for arguments of `Backbone`."""
    settings = {name: arguments[name] for name in ARGUMENTS if name in arguments}
    for group, names in OPTIONS.items():
        if group in arguments:
            options = as_options(GROUPS[group], group, arguments[group])
            settings |= {name: getattr(options, option) for option, name in names.items()}
    return settings


def start_from(path: str | os.PathLike, config: ml_collections.ConfigDict, vocabulary_size: int) -> keras.Model:
    """Load a language model from a file in the dtype of the configuration."""
    model = load_language_model("config.model.start_from", path, vocabulary_size)
    for name, setting, actual in _differences(config.model, model):
        raise ValueError(
            f"`config.model.{name}` must be unset, or match the model in config.model.start_from. "
            f"Received: {name}={setting!r}, in the model {actual!r}."
        )
    return rebuilt(model, dtype=config.train.dtype)


def _differences(settings: ml_collections.ConfigDict, model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, value, value in the model) of different settings, including settings of the preset."""
    defaults = base.get_config().model.to_dict()
    actual = settings_from_arguments(model.backbone.get_config())
    actual |= {"tie_embeddings": model.tie_embeddings, "use_output_bias": model.use_output_bias}
    given = {name: value for name, value in settings.to_dict().items() if name not in NOT_COMPARED}
    for name, value in given.items():
        is_given = name in ALWAYS_COMPARED or value not in (None, defaults[name])
        if name in actual and is_given and not _matches(value, actual[name]):
            yield name, value, actual[name]
    if settings.preset is not None:
        for name, value in settings_from_arguments(preset_arguments(settings.preset)).items():
            if isinstance(value, int) and given.get(name) is None and not _matches(value, actual.get(name, value)):
                yield "preset", f"{settings.preset}, with {name}={value}", actual[name]


def _matches(setting, actual):
    """Return whether a setting matches the model's setting. A dictionary matches if the model has all its items."""
    if isinstance(setting, dict) and isinstance(actual, dict):
        if "class_name" in actual and "layer" in setting:
            actual = {**actual["config"], "layer": actual["class_name"]}
        return all(name in actual and _matches(value, actual[name]) for name, value in setting.items())
    if isinstance(setting, (list, tuple)) and isinstance(actual, (list, tuple)):
        return len(setting) == len(actual) and all(_matches(*pair) for pair in zip(setting, actual, strict=True))
    return setting == actual


def make_batches(config: ml_collections.ConfigDict, store: Any) -> tsa.data.Batches:
    """Create the batches of a token store: windows, or consecutive segments for models with segment memory."""
    data = config.data
    options = {"seed": config.seed, "use_packing": data.use_packing}
    if config.model.memory_length:
        return tsa.data.segment_batches(store, data.batch_size, data.sequence_length, **options)
    return tsa.data.training_batches(store, data.batch_size, data.sequence_length, **options, mask_rate=data.mask_rate)


def make_model(config: ml_collections.ConfigDict, vocabulary_size: int) -> keras.Model:
    """Create a `LanguageModel`, seeded by `config.seed`, or load it from the file `config.model.start_from`."""
    settings = set_values(config.model)
    check_objective(config)
    if "start_from" in settings:
        return start_from(settings["start_from"], config, vocabulary_size)
    arguments, initialization = backbone_arguments(config), settings.get("initialization")
    head = {name: settings[name] for name in ("tie_embeddings", "use_output_bias")}
    checks.check_choice("config.model.initialization", initialization, (None, "depth"))
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
    """Return a `StatefulModel` around a model with segment memory, and other models unchanged."""
    if not getattr(getattr(model, "backbone", None), "memory_length", 0):
        return model
    return tsa.models.StatefulModel(model, batch_size, name="reader")  # part of variable paths in checkpoints


def check_objective(config: ml_collections.ConfigDict) -> None:
    """Raise a `ValueError` unless `causal`, `memory_length` and `mask_rate` are compatible."""
    if config.model.causal == bool(config.data.mask_rate):
        raise ValueError(
            "`config.data.mask_rate` must be positive with config.model.causal=False, which predicts masked tokens, "
            f"and 0 otherwise. Received: mask_rate={config.data.mask_rate}, causal={config.model.causal}."
        )
    if config.model.memory_length and config.data.mask_rate:
        raise ValueError("`config.model.memory_length` must be 0 with a mask rate. Received: both.")


def make_schedule(config: ml_collections.ConfigDict, hidden_dim: int) -> Any:
    """Create the learning-rate schedule of `config.optimizer`."""
    settings = config.optimizer
    rate, warmup = settings.learning_rate, settings.warmup_steps
    checks.check_choice("config.optimizer.schedule", settings.schedule, SCHEDULES)
    if settings.schedule == "constant":
        return tsa.optimizers.Constant(rate, warmup or 0)
    if warmup is None:
        raise ValueError(
            f"`config.optimizer.warmup_steps` must be given for the schedule {settings.schedule}. Received: None."
        )
    if settings.schedule == "noam":
        return tsa.optimizers.Noam(hidden_dim, warmup, scale=rate)
    if settings.schedule == "cosine":
        decay = settings.decay_steps or max(config.train.num_steps - warmup, 1)
        return keras.optimizers.schedules.CosineDecay(0.0, decay, warmup_target=rate, warmup_steps=warmup, alpha=0.0)
    return tsa.optimizers.RsqrtNormalizedDecay(
        rate, warmup, use_linear_warmup=settings.schedule == "rsqrt_with_linear_warmup"
    )


def make_optimizer(config: ml_collections.ConfigDict, hidden_dim: int) -> keras.optimizers.Optimizer:
    """Create the optimizer of `config.optimizer`, which also measures the gradient norm."""
    settings = set_values(config.optimizer)
    name = settings.pop("name")
    checks.check_choice("config.optimizer.name", name, OPTIMIZERS)
    kind, of_schedule = OPTIMIZERS[name], {"learning_rate", "schedule", "warmup_steps", "decay_steps"}
    settings = {setting: value for setting, value in settings.items() if setting not in of_schedule}
    known = {*inspect.signature(kind).parameters, *inspect.signature(keras.optimizers.Optimizer).parameters}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(
            f"`config.optimizer.{unknown[0]}` must be unset for {name}, which has no such argument. "
            f"Received: {settings[unknown[0]]}."
        )
    mixins = [tsa.optimizers.SkipNonfinite] if config.train.nonfinite == "skip" else []
    optimizer_class = type(f"Measured{kind.__name__}", (*mixins, tsa.optimizers.GradientNorm, kind), {})
    return optimizer_class(make_schedule(config, hidden_dim), **settings)


# All tokenizers except bytes are loaded from a file.
KINDS: dict[str, Any] = {
    "bytes": tsa.data.ByteTokenizer,
    "subword": tsa.data.SubwordTokenizer,
    "sentencepiece": tsa.data.SentencePieceTokenizer,
    "wordpiece": tsa.data.WordPieceTokenizer,
}


def make_tokenizer(
    name: str,
    path: str | os.PathLike | None = None,
    settings: tuple[str, str] = ("config.data.tokenizer", "config.data.vocabulary"),
) -> Any:
    """Create the tokenizer `name`, one of `KINDS`, from the file or address of its vocabulary. Bytes have none.

    `settings` are the names of the settings of `name` and `path` in error messages.
    """
    checks.check_choice(settings[0], name, KINDS)
    if name == "bytes":
        if path is not None:
            raise ValueError(f"`{settings[1]}` must be unset for bytes. Received: {path}.")
        return KINDS[name]()
    if path is None:
        raise ValueError(
            f"`{settings[1]}` must be the file of a {name} tokenizer. `tsa-vocabulary` creates a vocabulary of "
            "subwords. Received: None."
        )
    return KINDS[name].from_file(local_path(path))


def describe(tokenizer: Any) -> dict[str, Any]:
    """Return the class and the config of a tokenizer, as plain data."""
    return {"class": type(tokenizer).__name__, "config": tokenizer.get_config()}


def from_description(description: dict[str, Any]) -> Any:
    """Create a tokenizer from the result of `describe`. Raise a `ValueError` for a class that is not in `KINDS`."""
    classes = {kind.__name__: kind for kind in KINDS.values()}
    checks.check_choice("class", description.get("class"), classes)
    return classes[description["class"]].from_config(description["config"])
