"""Checks of the settings of a task: required settings, and settings that the task ignores."""

from collections.abc import Mapping, Sequence

import ml_collections

from tf_sparse_attention.trainers.configs import base

Names = Mapping[str, Sequence[str]]  # names of settings by section

# Settings that every task reads, in addition to `config.optimizer`.
COMMON: Names = {
    "data": (
        *("tfds", "path", "local_dir", "data_dir", "train_split", "validation_split"),
        *("sequence_length", "batch_size"),
    ),
    "model": (
        *("num_layers", "hidden_dim", "embedding_dim", "intermediate_dim", "activation", "attention", "sinusoidal"),
        *("num_local_layers", "norm", "dropout", "embedding_dropout", "activation_dropout", "token_dropout"),
        *("layer_norm_epsilon", "remat"),
    ),
    "train": (
        *("num_steps", "log_every", "evaluate_every", "checkpoint_every", "keep_checkpoints", "illustrate", "dtype"),
        *("jit_compile", "steps_per_execution", "num_logical_cpus", "model_parallel", "deterministic", "nonfinite"),
        *("shrink_windows_every", "shrink_windows_margin"),
    ),
}
# Further settings that `components.make_model` reads for a language model, except `memory_length`.
LANGUAGE_MODEL: Sequence[str] = (
    *("start_from", "preset", "reproduce_reference", "causal", "grid", "initialization"),
    *("tie_embeddings", "use_output_bias"),
)
SAMPLING = ("temperature", "top_p")  # settings of `config.generate`


def check_settings(config: ml_collections.ConfigDict, required: Names, excluded: Names) -> None:
    """Raise a `ValueError` if a required setting is missing, or an excluded setting is set.

    Args:
        config: the configuration.
        required, excluded: names of settings by section. None, False, 0 and empty values count as missing.
    """
    for is_required, sections in ((True, required), (False, excluded)):
        for section, names in sections.items():
            for name in names:
                value = config[section][name]
                if bool(value) != is_required:
                    raise ValueError(
                        f"`config.{section}.{name}` must be {'given' if is_required else 'unset'} for "
                        f"task={config.task}. Received: {name}={value!r}."
                    )


def check_read(settings: ml_collections.ConfigDict, task: str, names: Names) -> None:
    """Raise a `ValueError` if a setting that the task ignores differs from its default.

    Args:
        settings: a configuration or a part of one. Settings that are None are not checked.
        task: name of the task.
        names: names of the settings that the task reads in addition to `COMMON`, by section.
    """
    defaults = base.get_config().to_dict()
    for section, values in settings.to_dict().items():
        if section == "optimizer" or not isinstance(values, dict):
            continue
        for name in sorted(values.keys() - {*COMMON.get(section, ()), *names.get(section, ())}):
            value, default = values[name], defaults.get(section, {}).get(name)
            if value is not None and _plain(value) != _plain(default):
                raise ValueError(
                    f"`config.{section}.{name}` must be unset for task={task}, which ignores it. "
                    f"Received: {name}={value!r}. The default is {default!r}; see trainers/configs/base.py. A task "
                    "that reads a setting lists it in `Task.settings`."
                )


def _plain(value):
    return list(value) if isinstance(value, tuple) else value
