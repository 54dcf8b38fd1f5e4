"""Loading of KerasHub presets of models with replaced attention."""

import inspect

import keras

from tf_sparse_attention.models.swapped_model import SwappedModel, swapped_class


def register_presets() -> None:
    """Register classes so that KerasHub's `from_preset` loads models with replaced attention.

    KerasHub looks up the class of a preset among the classes registered with Keras. `replace_attention` creates the
    class of its result. A program that only loads presets calls this function once before it loads.

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
