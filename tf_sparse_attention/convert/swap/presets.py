"""Loads presets of KerasHub with models whose attention was replaced."""

import inspect

import keras

from tf_sparse_attention.models.swapped_model import SwappedModel, swapped_class


def register_presets() -> None:
    """Let `from_preset` of KerasHub load models whose attention was replaced, and which `save_to_preset` has saved.

    KerasHub looks for the class of a preset among those that are registered with Keras. The classes of such models are
    made when attention is replaced; a new program makes them by this function, once, before it loads a preset.

    Raises:
        ImportError: If KerasHub is not installed.

    Example:
        >>> tsa.convert.register_presets()
        >>> model = keras_hub.models.CausalLM.from_preset("sparse_llama")  # doctest: +SKIP
    """
    import keras_hub

    kinds = keras_hub.models.Backbone, keras_hub.models.Task
    for found in set(keras.saving.get_custom_objects().values()):
        if inspect.isclass(found) and issubclass(found, kinds) and not issubclass(found, SwappedModel):
            swapped_class(found)  # type: ignore[arg-type]  # a class can be hashed
