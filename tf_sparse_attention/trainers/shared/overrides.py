"""Settings that an evaluation can override, and their flags. Imports no backend, so that --help is fast."""

from collections.abc import Callable

import ml_collections
from absl import flags
from ml_collections.config_dict import placeholder

from tf_sparse_attention.trainers.configs import base

SOURCE_SETTINGS = ("tfds", "path", "pattern", "text_field", "local_dir", "text_feature", "data_dir")
WINDOW_SETTINGS = ("batch_size", "sequence_length", "use_packing", "mask_rate", "overlap")
EXECUTION_SETTINGS = ("jit_compile", "steps_per_execution", "num_logical_cpus", "model_parallel")
# All settings that an evaluation reads, by section, except those of the trained model.
SETTINGS = {
    "data": (*SOURCE_SETTINGS, *WINDOW_SETTINGS),
    "train": (*EXECUTION_SETTINGS, "generated_targets", "generated_beams", "num_beams", "evaluation_attention"),
    "generate": ("length",),
}


def overridable_settings() -> ml_collections.ConfigDict:
    """Create a locked `ml_collections.ConfigDict` of the settings that an evaluation can override, all None."""
    defaults = base.get_config()
    settings = {
        section: {name: placeholder(defaults[section].get_type(name)) for name in names}
        for section, names in SETTINGS.items()
    }
    return ml_collections.ConfigDict(settings).lock()


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> Callable[[], ml_collections.ConfigDict]:
    """Define a flag for every setting that can be overridden, such as --config.data.path.

    Args:
        flag_values: `absl.flags.FlagValues` for the new flags.

    Returns:
        Function that returns `overridable_settings()` with the values of the parsed flags.
    """
    # Not `config_flags`: it raises an AttributeError without a message for unknown names.
    define: dict[type, Callable[..., flags.FlagHolder]] = {
        bool: flags.DEFINE_boolean,
        float: flags.DEFINE_float,
        int: flags.DEFINE_integer,
        str: flags.DEFINE_string,
    }
    overrides = overridable_settings()
    flag_holders = {}
    for section, names in SETTINGS.items():
        for name in names:
            make = define[overrides[section].get_type(name)]
            text = "Default: the training setting; see trainers/configs/base.py."
            flag_holders[section, name] = make(f"config.{section}.{name}", None, text, flag_values=flag_values)

    def read():
        for (section, name), holder in flag_holders.items():
            overrides[section][name] = holder.value
        return overrides

    return read
