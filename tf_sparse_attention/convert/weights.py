"""Weights of a language model by name, whatever the model itself is called."""

import contextlib

import keras

from tf_sparse_attention.models import Backbone, LanguageModel


@contextlib.contextmanager
def zeros_at_first():
    """Makes weights zeros that would begin with random numbers, while the block runs: they are to be overwritten.

    Random numbers take three times the memory of a weight while they are drawn, and for large ones seconds. Only what
    this thread creates is concerned. On JAX, which has no scope for new variables, weights begin as they always do.
    """
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    # Makes the generator of random seeds of the process, which must not begin in a graph of `_zeros_for_random`.
    keras.random.uniform(())
    with tf.variable_creator_scope(_create_without_random):
        yield


def _create_without_random(next_creator, **kwargs):
    """Creates a `tf.Variable`, one creator of a scope."""
    if callable(kwargs.get("initial_value")):
        kwargs["initial_value"] = _zeros_for_random(kwargs["initial_value"])
    return next_creator(**kwargs)


def _zeros_for_random(initial_value):
    """Returns a function of zeros in place of one that draws random numbers, any other as it is."""
    import tensorflow as tf

    try:
        with tf.Graph().as_default() as graph:  # nothing in it is computed
            value = initial_value()
    except Exception:  # whatever code that is no graph's raises, such as one that reads a variable
        return initial_value
    kinds = {operation.type for operation in graph.get_operations()}
    draws = any("Random" in kind or "TruncatedNormal" in kind for kind in kinds)
    if not draws or not value.shape.is_fully_defined():
        return initial_value
    return lambda: tf.zeros(value.shape, value.dtype)


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
