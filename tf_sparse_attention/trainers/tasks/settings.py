"""What the settings of a configuration must be for a task: which must be given, and which of them the task reads."""

from collections.abc import Mapping, Sequence

import ml_collections

from tf_sparse_attention.trainers.configs import base

Names = Mapping[str, Sequence[str]]  # of settings, by section

# What every task reads, in addition to `config.optimizer`.
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
# What `components.make_model` reads for a language model, in addition to these and `memory_length`.
LANGUAGE_MODEL: Sequence[str] = (
    *("start_from", "preset", "reproduce_reference", "causal", "grid", "initialization"),
    *("tie_embeddings", "use_output_bias"),
)
SAMPLING = ("temperature", "top_p")  # of `config.generate`


def check_settings(config: ml_collections.ConfigDict, needed: Names, unset: Names) -> None:
    """Raises a `ValueError` for settings that a task lacks, or that do not go with others of it.

    Args:
        config: the settings.
        needed, unset: the names of those that must be given, or unset (None, False, 0 or empty), by section.
    """
    for wanted, sections in (("given", needed), ("unset", unset)):
        for section, names in sections.items():
            for name in names:
                value = config[section][name]
                if bool(value) != (wanted == "given"):
                    received = f"Received: {name}={value!r}."
                    raise ValueError(f"`config.{section}.{name}` must be {wanted} for task={config.task}. {received}")


def check_read(settings: ml_collections.ConfigDict, task: str, own: Names) -> None:
    """Raises a `ValueError` for a setting with another value than its default that a task ignores.

    Args:
        settings: a configuration, or some settings of one; those that are None say nothing.
        task: name of the task.
        own: names of the settings that it reads in addition to the `COMMON` ones, by section.
    """
    defaults = base.get_config().to_dict()
    for section, values in settings.to_dict().items():
        if section == "optimizer" or not isinstance(values, dict):
            continue
        for name in sorted(values.keys() - {*COMMON.get(section, ()), *own.get(section, ())}):
            value, default = values[name], defaults.get(section, {}).get(name)
            if value is not None and _plain(value) != _plain(default):
                raise ValueError(
                    f"`config.{section}.{name}` must be unset for task={task}, which ignores it: leave it out, or give "
                    f"its default, {default!r}; trainers/configs/base.py describes it. "
                    f"Received: {name}={value!r}."
                )


def _plain(value):
    return list(value) if isinstance(value, tuple) else value
