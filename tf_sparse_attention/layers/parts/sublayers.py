"""Layers inside of others, in configs."""

from typing import Any

import keras


def deserialize_unbuilt(serialized: dict[str, Any]) -> keras.layers.Layer:
    """Returns the layer of a serialised form, not built: so the paths of its weights begin with what it will be in."""
    return keras.saving.deserialize_keras_object({**serialized, "build_config": None})
