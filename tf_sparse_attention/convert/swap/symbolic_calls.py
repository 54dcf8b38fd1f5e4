"""Symbolic calls of a model: whether the model runs, and how it calls the attention in it."""

import contextlib
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tf_sparse_attention.convert.swap.dense_attention import is_keras_attention
from tf_sparse_attention.layers.parts.call_inputs import normalize_self_attention
from tf_sparse_attention.models.layer_sites import find_layer_sites
from tf_sparse_attention.types import Shape

# Sizes of the axes that the inputs of a model leave open, to try until the model accepts one. A few positions first,
# since long windows have many blocks to trace. None: symbolic. 4096: sounds in front of convolutions with strides.
# After these the sizes of embeddings of positions, which may be for one length alone.
SIZES = (16, None, 4, 4096)
DTYPES = ("float32", "int32")  # to try where a model does not define its inputs
Inputs = list[Any]  # the positional arguments of a call


class SymbolicCalls:
    """The symbolic calls of a dense model.

    Args:
        model: a built model.

    Attributes:
        crossings: by the index path of each attention of Keras that the model calls, whether a call attends to another
            sequence. Empty if no inputs were found that the model accepts.
    """

    def __init__(self, model: keras.Model) -> None:
        self.crossings: dict[str, bool] = {}
        accepted = (inputs for inputs in _possible_inputs(model) if self._accepts(model, inputs))
        first = next(accepted, None)
        self._accepted = accepted if first is None else itertools.chain([first], accepted)

    def error_of(self, copy: keras.Model) -> Exception | None:
        """Return the error that a copy of the model raises for all inputs that the model accepts, or None."""
        error = None
        for inputs in self._accepted:
            try:
                _call(copy, inputs)
            except Exception as raised:  # whatever its layers raise
                error = error or raised
            else:
                return None
        return error

    def _accepts(self, model, inputs):
        try:
            with _recorded_crossings(model) as crossings:
                _call(model, inputs)
        except Exception:  # whatever its layers raise
            return False
        self.crossings = self.crossings or crossings
        return True


def _call(model: keras.Model, inputs: Inputs) -> None:
    """Call a model with symbolic tensors, which computes shapes and no numbers.

    Raises:
        Exception: whatever the model raises.
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
        warnings.simplefilter("ignore")  # the user's own call is to warn
        try:
            Call().compute_output_spec(inputs)
        except Exception:
            if errors:
                raise errors[0] from None  # without the text that Keras adds
            raise


@contextlib.contextmanager
def _without_new_tensors(model: keras.Model) -> Iterator[None]:
    """Context after which the layers of a model hold no tensor of a symbolic call, as layers that cache results do."""
    layers = list({id(layer): layer for layer in (model, *(site.layer for site in find_layer_sites(model)))}.values())
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
            yield [keras.tree.map_structure(functools.partial(_like, size=size), inputs)]
        return
    config = model.get_build_config() or {}
    shapes = [config["input_shape"]] if "input_shape" in config else list(config.get("shapes_dict", {}).values())
    for size, dtype in itertools.product(sizes, DTYPES) if shapes else ():
        yield [_map_shapes(functools.partial(_tensor, dtype=dtype, size=size), each) for each in shapes]


def _tensor(shape: Shape, dtype: str, size: int | None) -> keras.KerasTensor:
    """Return a symbolic tensor whose open axes have a size, that of the batch 2."""
    if size is not None:
        batch, *others = shape
        shape = (batch or 2, *(size if axis is None else axis for axis in others))
    return keras.KerasTensor(shape, dtype)


def _like(x, size):
    return _tensor(x.shape, x.dtype, size)


def _map_shapes(function: Callable[[Shape], Any], shapes: Any) -> Any:
    """Return a structure of shapes with a function applied to each shape."""
    if isinstance(shapes, dict):
        return {name: _map_shapes(function, shape) for name, shape in shapes.items()}
    if all(axis is None or isinstance(axis, int) for axis in shapes):
        return function(tuple(shapes))
    return [_map_shapes(function, shape) for shape in shapes]


@contextlib.contextmanager
def _recorded_crossings(model: keras.Model) -> Iterator[dict[str, bool]]:
    """Context that yields `SymbolicCalls.crossings`, which are complete when it ends."""
    sites = [site for site in find_layer_sites(model) if is_keras_attention(site.layer)]
    calls: dict[int, list[bool]] = {}
    crossings: dict[str, bool] = {}
    with contextlib.ExitStack() as stack:
        for layer in {id(site.layer): site.layer for site in sites}.values():
            stack.enter_context(_recording(layer, calls.setdefault(id(layer), [])))
        yield crossings
    for site in sites:
        if calls[id(site.layer)]:
            crossings[site.index_path] = any(calls[id(site.layer)])


@contextlib.contextmanager
def _recording(layer: keras.layers.Layer, calls: list[bool]) -> Iterator[None]:
    """Context in which each call of Keras's attention appends whether it attends to another sequence.

    `__call__` is observed, and not `call`, because Keras may cast one tensor into three in between.
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
