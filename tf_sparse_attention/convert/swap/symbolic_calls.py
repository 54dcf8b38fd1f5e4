"""Symbolic calls of a model, to check that it runs and to detect cross-attention."""

import contextlib
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tf_sparse_attention.convert.swap.dense_attention import is_keras_attention, is_sparse
from tf_sparse_attention.convert.swap.model_copy import layers_by_path
from tf_sparse_attention.convert.swap.recorded_calls import replaced_call
from tf_sparse_attention.layers.parts.call_inputs import normalize_self_attention
from tf_sparse_attention.models.swapped_model import find_layer_sites
from tf_sparse_attention.types import Shape

# Sizes to try for the unknown axes of a model's inputs, until the model accepts one. Short lengths come first because
# long sequences have many blocks to trace. None: symbolic. 4096: audio before strided convolutions. The sizes of
# position embeddings follow, since a model may accept only this length.
SIZES = (16, None, 4, 4096)
DTYPES = ("float32", "int32")  # to try if the model does not define its inputs
Inputs = list[Any]  # the positional arguments of a call


class SymbolicCalls:
    """The symbolic calls of a dense model.

    Args:
        model: a built model.

    Attributes:
        crossings: by index path of each Keras attention that the model calls, whether any call is cross-attention.
            Empty if the model accepts none of the tried inputs.
    """

    def __init__(self, model: keras.Model) -> None:
        self.crossings: dict[str, bool] = {}
        accepted = (inputs for inputs in _possible_inputs(model) if self._accepts(model, inputs))
        first = next(accepted, None)
        self._accepted = accepted if first is None else itertools.chain([first], accepted)

    def error_of(self, copy: keras.Model) -> Exception | None:
        """Return the first error of a model's copy if it fails for all inputs that the model accepts, or None."""
        error = None
        for inputs in self._accepted:
            try:
                with _equal_calls_computed_once(copy):
                    _call(copy, inputs)
            except Exception as raised:  # its layers may raise any exception
                error = error or raised
            else:
                return None
        return error

    def _accepts(self, model, inputs):
        try:
            with _recorded_crossings(model) as crossings:
                _call(model, inputs)
        except Exception:  # its layers may raise any exception
            return False
        self.crossings = self.crossings or crossings
        return True


def _call(model: keras.Model, inputs: Inputs) -> None:
    """Call a model with symbolic tensors, which computes shapes only.

    Raises:
        Exception: The exception of the model, if any.
    """
    errors = []

    class Call(keras.Operation):
        def call(self, inputs: Inputs) -> Any:
            try:
                return model(*inputs, training=False)
            except Exception as error:
                errors.append(error)
                raise

    with warnings.catch_warnings(), _without_new_tensors(model):
        warnings.simplefilter("ignore")  # the user's call shows warnings
        try:
            Call().compute_output_spec(inputs)
        except Exception:
            if errors:
                raise errors[0] from None  # hide the text that Keras adds
            raise


@contextlib.contextmanager
def _equal_calls_computed_once(model: keras.Model) -> Iterator[None]:
    """Compute sparse attention only for the first of equal layers with equal arguments, because tracing takes long.

    Repeated calls return a placeholder of the correct shape. Layers without a config are always computed.
    """
    attentions = [getattr(site.layer, "attention", site.layer) for site in find_layer_sites(model)]
    computed = set[str]()
    with contextlib.ExitStack() as stack:
        for layer in {id(layer): layer for layer in attentions if is_sparse(layer)}.values():
            with contextlib.suppress(Exception):  # a pattern of the user may not be serializable
                config = repr((type(layer), {**layer.get_config(), "name": None, "seed": None}))
                stack.enter_context(replaced_call(layer, _call_once(layer, config, computed)))
        yield


def _call_once(layer: keras.layers.Layer, config: str, computed: set[str]) -> Callable[..., Any]:
    """Return the method `call` of a sparse attention, without computation if an equal call is in `computed`."""
    call = layer.call

    @functools.wraps(call)
    def call_once(query, *args, return_attention_scores=False, **kwargs):
        arguments = keras.tree.map_structure(
            lambda x: (x.shape, str(x.dtype)) if keras.ops.is_tensor(x) else x, (query, args, kwargs)
        )
        key = f"{config} {arguments}"
        if return_attention_scores or key not in computed:
            output = call(query, *args, return_attention_scores=return_attention_scores, **kwargs)
            computed.add(key)
            return output
        return keras.ops.repeat(query[..., :1], layer.compute_output_shape(query.shape)[-1], axis=-1)

    return call_once


@contextlib.contextmanager
def _without_new_tensors(model: keras.Model) -> Iterator[None]:
    """Remove tensors that layers cache during a symbolic call, at the end of the context."""
    layers = list(layers_by_path(model).values())
    before = [dict(vars(layer)) for layer in layers]
    try:
        yield
    finally:
        for layer, old in zip(layers, before, strict=True):
            for name, value in list(vars(layer).items()):
                if value is old.get(name) or not any(map(keras.ops.is_tensor, keras.tree.flatten(value))):
                    continue
                if name in old:
                    vars(layer)[name] = old[name]
                else:
                    del vars(layer)[name]


def _possible_inputs(model: keras.Model) -> Iterator[Inputs]:
    """Iterate over symbolic inputs that a model may accept."""
    sizes = [*SIZES, *sorted({size for weight in model.weights if "position" in weight.path for size in weight.shape})]
    if isinstance(model, keras.Function | keras.Sequential):
        inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        for size in sizes:
            yield [keras.tree.map_structure(lambda x, size=size: _tensor(x.shape, x.dtype, size), inputs)]
        return
    config = model.get_build_config() or {}
    shapes = [config["input_shape"]] if "input_shape" in config else list(config.get("shapes_dict", {}).values())
    for size, dtype in itertools.product(sizes, DTYPES) if shapes else ():
        tensor = functools.partial(_tensor, dtype=dtype, size=size)
        yield [keras.tree.map_shape_structure(tensor, each) for each in shapes]


def _tensor(shape: Shape, dtype: str, size: int | None) -> keras.KerasTensor:
    """Return a symbolic tensor with unknown axes set to `size`, and an unknown batch size set to 2."""
    if size is not None:
        batch, *others = shape
        shape = (batch or 2, *(size if axis is None else axis for axis in others))
    return keras.KerasTensor(shape, dtype)


@contextlib.contextmanager
def _recorded_crossings(model: keras.Model) -> Iterator[dict[str, bool]]:
    """Yield a dictionary that holds `SymbolicCalls.crossings` at the end of the context."""
    sites = [site for site in find_layer_sites(model) if is_keras_attention(site.layer)]
    layers = {id(site.layer): site.layer for site in sites}
    calls: dict[int, list[bool]] = {key: [] for key in layers}
    crossings: dict[str, bool] = {}
    with contextlib.ExitStack() as stack:
        for key, layer in layers.items():
            stack.enter_context(_recording(layer, calls[key]))
        yield crossings
    crossings |= {site.index_path: any(calls[id(site.layer)]) for site in sites if calls[id(site.layer)]}


@contextlib.contextmanager
def _recording(layer: keras.layers.Layer, calls: list[bool]) -> Iterator[None]:
    """Append to `calls`, for each call of a Keras attention within the context, whether it is cross-attention.

    `__call__` is recorded instead of `call`, because Keras may cast one tensor to three different ones in between.
    """
    kind: Any = type(layer)
    names = list(inspect.signature(layer.call).parameters)

    def call_and_record(self, *args, **kwargs):
        given = dict(zip(names, args, strict=False)) | kwargs
        value, _ = normalize_self_attention(given["query"], given.get("value"), given.get("key"))
        calls.append(value is not None)
        return kind.__call__(self, *args, **kwargs)

    layer.__class__ = type(kind)(kind.__name__, (kind,), {"__call__": call_and_record, "__module__": kind.__module__})
    try:
        yield
    finally:
        layer.__class__ = kind
