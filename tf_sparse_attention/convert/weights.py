"""Weights of a language model by name, whatever the model itself is called."""

import contextlib

import keras

from tf_sparse_attention.models import Backbone, LanguageModel


@contextlib.contextmanager
def zeros_at_first():
    """Makes weights zeros that would begin with random numbers, while the block runs: they are to be overwritten.

    Random numbers take three times the memory of a weight while they are drawn, and for large ones seconds.
    """
    add_weight = keras.layers.Layer.add_weight
    constants = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)

    def add_zeros(layer, *args, initializer=None, **kwargs):
        known = isinstance(keras.initializers.get(initializer), constants)
        return add_weight(layer, *args, initializer=initializer if known else "zeros", **kwargs)

    keras.layers.Layer.add_weight = add_zeros
    try:
        yield
    finally:
        keras.layers.Layer.add_weight = add_weight


def weights_by_path(model):
    """Returns the weights of a `LanguageModel` by their paths below it, those of its backbone under "backbone/"."""
    paths = {}
    for weight in model.weights:
        path = weight.path.removeprefix(f"{model.name}/")
        own = path.removeprefix(f"{model.backbone.name}/")
        paths[path if own == path else f"backbone/{own}"] = weight
    return paths


def rebuilt(model, **changes):
    """Returns a new `LanguageModel` with the weights of another, not compiled.

    Args:
        model: a `LanguageModel`.
        **changes: arguments of its `Backbone` that are to be others, none that a weight's shape depends on.
    """
    dtype = changes.get("dtype", model.dtype_policy)
    with zeros_at_first():
        backbone = Backbone(**{**model.backbone.get_config(), **changes})
        changed = LanguageModel(backbone, model.tie_embeddings, model.use_output_bias, dtype=dtype)
    weights = weights_by_path(model)
    for path, weight in weights_by_path(changed).items():
        weight.assign(weights[path])
    return changed
