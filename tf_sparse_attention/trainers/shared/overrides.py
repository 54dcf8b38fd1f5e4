"""The settings that an evaluation may override, and their flags. Imports no backend, for the sake of --help."""

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
    """Returns the settings that an evaluation may override, all None: a locked `ml_collections.ConfigDict`."""
    defaults = base.get_config()
    settings = {
        section: {name: placeholder(defaults[section].get_type(name)) for name in names}
        for section, names in SETTINGS.items()
    }
    return ml_collections.ConfigDict(settings).lock()


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> Callable[[], ml_collections.ConfigDict]:
    """Defines a flag for every setting that may be overridden, such as --config.data.path.

    Args:
        flag_values: `absl.flags.FlagValues` in which to define them.

    Returns:
        Function that returns `overridable_settings()` with the values of the flags, to be called once they are parsed.
    """
    # Flags of absl itself: those of `config_flags` raise a bare AttributeError for an unknown name.
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
            make, text = define[overrides[section].get_type(name)], "Overrides that of the training."
            flag_holders[section, name] = make(f"config.{section}.{name}", None, text, flag_values=flag_values)

    def read():
        for (section, name), holder in flag_holders.items():
            overrides[section][name] = holder.value
        return overrides

    return read
