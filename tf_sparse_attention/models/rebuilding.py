"""Copies of models with changed arguments, weights by path, and initialization with zeros."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tf_sparse_attention.layers.parts.variables import assign_copy
from tf_sparse_attention.models.backbone import Backbone
from tf_sparse_attention.models.backbone_options import merge_arguments
from tf_sparse_attention.models.language_model import LanguageModel
from tf_sparse_attention.models.sequence_to_sequence import SequenceToSequence

# Attributes that hold the models inside a model, by class.
PARTS: dict[type[keras.Model], tuple[str, ...]] = {
    LanguageModel: ("backbone",),
    SequenceToSequence: ("encoder", "decoder"),
}


@contextlib.contextmanager
def initialize_with_zeros() -> Iterator[None]:
    """Create weights as zeros instead of random numbers in this context, because they will be overwritten.

    Drawing random numbers takes three times the memory of a weight, and seconds for large weights. Only affects this
    thread. On JAX, which has no scope for new variables, weights start as usual.
    """
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    # Create the global seed generator now, not in the graph of `_zeros_for_random`.
    keras.random.uniform(())
    with tf.variable_creator_scope(_create_without_random):
        yield


def _create_without_random(next_creator, **kwargs):
    """Create a `tf.Variable` with zeros instead of random numbers."""
    if callable(kwargs.get("initial_value")):
        kwargs["initial_value"] = _zeros_for_random(kwargs["initial_value"])
    return next_creator(**kwargs)


def _zeros_for_random(initial_value):
    """Return a function of zeros if `initial_value` draws random numbers, else `initial_value`."""
    import tensorflow as tf

    try:
        with tf.Graph().as_default() as graph:  # traced, never run
            value = initial_value()
    except Exception:  # some code cannot be traced, such as reading a variable
        return initial_value
    types = {operation.type for operation in graph.get_operations()}
    draws = any("Random" in name or "TruncatedNormal" in name for name in types)
    if not draws or not value.shape.is_fully_defined():
        return initial_value
    return lambda: tf.zeros(value.shape, value.dtype)


def weights_by_path(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the weights of a model by path, without the name of the model.

    Args:
        model: a `Backbone`; a `LanguageModel`, with paths that start with "backbone"; or a `SequenceToSequence`, with
            paths that start with "encoder" and "decoder".
    """
    names = next((names for kind, names in PARTS.items() if isinstance(model, kind)), ())
    parts = [(name, weights_by_path(getattr(model, name))) for name in names]
    paths = {f"{name}/{path}": weight for name, weights in parts for path, weight in weights.items()}
    inside = {id(weight) for weight in paths.values()}
    own = [weight for weight in model.weights if id(weight) not in inside]
    return paths | {weight.path.removeprefix(f"{model.name}/"): weight for weight in own}


def rebuilt(model: LanguageModel, **changes: Any) -> LanguageModel:
    """Create an uncompiled copy of a `LanguageModel` with changed arguments and the same weights.

    Args:
        model: a `LanguageModel`.
        **changes: arguments of its `Backbone` to change, which must keep the shapes of all weights. A dictionary of
            options changes only the options that it names.
    """
    dtype = changes.get("dtype", model.dtype_policy)
    with initialize_with_zeros():
        backbone = Backbone(**merge_arguments(model.backbone.get_config(), changes))
        changed = LanguageModel(backbone, model.tie_embeddings, model.use_output_bias, dtype=dtype)
    return _copy_weights(model, changed)


def rebuilt_backbone(backbone: Backbone, **changes: Any) -> Backbone:
    """Create a copy of a `Backbone` with changed arguments and the same weights; see `rebuilt`."""
    with initialize_with_zeros():
        changed = Backbone(**merge_arguments(backbone.get_config(), changes))
    return _copy_weights(backbone, changed)


def _copy_weights(model, changed):
    weights, targets = weights_by_path(model), weights_by_path(changed)
    if differing := sorted(weights.keys() ^ targets.keys()):
        raise ValueError(f"`changes` must keep the weights of the model. Received: changes of {differing[0]}.")
    for path, weight in targets.items():
        assign_copy(weight, weights[path])
    return changed
