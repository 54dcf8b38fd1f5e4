"""Copy of a layer or model in another precision."""

import contextlib
import warnings
from collections.abc import Callable

import keras
from keras import ops

from tf_sparse_attention.layers.parts.variables import assign_copy


def copy_in_precision(layer: keras.Layer, dtype: str, build: Callable[[keras.Layer], None]) -> keras.Layer:
    """Return a copy of a layer or model that computes in `dtype`, with the same values of all variables.

    The copy is created from the layer's config, with the dtype policies of all nested layers replaced. Layers without a
    dtype policy in the config get `dtype` from the global policy.

    Args:
        layer: built Keras layer or model.
        dtype: "float32" or "float64".
        build: function that builds the copy.

    Returns:
        The copy.

    Raises:
        ValueError: If `layer` is not a Keras layer or cannot be created from its config, if one of its layers keeps
            another precision, or if the backend does not have `dtype`.
    """
    if not isinstance(layer, keras.Layer):
        raise ValueError(f"`dtype` must be None if `target` is a function. Received: dtype={dtype!r}.")
    _check_backend_has(dtype)
    with _global_policy(dtype):
        copy = _from_config(layer, dtype)
        build(copy)
    others = [
        f"{part.path or part.name} ({part.compute_dtype})"
        for part in copy._flatten_layers()
        if part.compute_dtype != dtype and not isinstance(part, keras.layers.InputLayer)
    ]
    if others:
        raise ValueError(
            f"`target` must take its precision from its dtype policy. Received: dtype={dtype!r}, but {others[0]}."
        )
    _copy_variables(layer, copy)
    return copy


def _from_config(layer, dtype):
    classes = {type(part).__name__: type(part) for part in layer._flatten_layers()}
    try:
        with keras.saving.CustomObjectScope(classes):
            return type(layer).from_config(_with_policy(layer.get_config(), dtype))
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            f"`dtype` must be None for a layer that cannot be created from its config. Received: dtype={dtype!r}, "
            f"target={layer.name!r}."
        ) from error


def _with_policy(config, dtype):
    """Replace every serialized dtype policy in a config, at any depth."""
    if isinstance(config, list | tuple):
        return type(config)(_with_policy(item, dtype) for item in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy":
        return dtype
    return {key: _with_policy(item, dtype) for key, item in config.items()}


def _copy_variables(source, copy):
    pairs = list(zip(source.variables, copy.variables, strict=False))
    same = len(source.variables) == len(copy.variables) and all(old.shape == new.shape for old, new in pairs)
    if not same:
        raise ValueError(
            "`target` must have a config that determines its variables. Received: "
            f"{len(source.variables)} variables, but {len(copy.variables)} or other shapes in the copy."
        )
    for old, new in pairs:
        assign_copy(new, old)


def _check_backend_has(dtype):
    with warnings.catch_warnings():
        # JAX warns and uses float32.
        warnings.simplefilter("ignore")
        got = keras.backend.standardize_dtype(ops.zeros((), dtype).dtype)
    if got != dtype:
        raise ValueError(
            f"`dtype` must be available on the backend; JAX needs `jax_enable_x64`. Received: dtype={dtype!r}."
        )


@contextlib.contextmanager
def _global_policy(dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
