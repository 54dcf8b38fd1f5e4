"""Recording of the inputs and outputs of a model's layers during a call of the model."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras

from tf_sparse_attention.types import Tensor


class RecordedCall(NamedTuple):
    """One call of a layer.

    Attributes:
        inputs: the first argument.
        arguments: the remaining arguments, by name.
        output: the result; the first item if the layer returns a tuple.
    """

    inputs: Tensor
    arguments: dict[str, Any]
    output: Tensor


@contextlib.contextmanager
def recorded_calls(layers: Iterable[keras.layers.Layer]) -> Iterator[dict[int, list[RecordedCall]]]:
    """Yield a dictionary that collects the calls of layers, by `id` of the layer, within the context.

    In a traced function, the recorded tensors are symbolic. The layers are restored at the end of the context.
    """
    found: dict[int, list[RecordedCall]] = {}
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_recording(layer, found.setdefault(id(layer), [])))
        yield found


@contextlib.contextmanager
def _recording(layer: keras.layers.Layer, calls: list[RecordedCall]) -> Iterator[None]:
    call = layer.call
    names = list(inspect.signature(call).parameters)

    @functools.wraps(call)
    def record(*args, **kwargs):
        output = call(*args, **kwargs)
        given = dict(zip(names, args, strict=False)) | kwargs
        inputs = given.pop(names[0])
        calls.append(RecordedCall(inputs, given, output[0] if isinstance(output, tuple) else output))
        return output

    with replaced_call(layer, record):
        yield


@contextlib.contextmanager
def replaced_call(layer: keras.layers.Layer, call: Callable[..., Any]) -> Iterator[None]:
    """Replace the method `call` of a layer within the context."""
    before = vars(layer).get("call")
    vars(layer)["call"] = call  # `setattr` would let Keras track the attribute
    try:
        yield
    finally:
        if before is None:
            del vars(layer)["call"]
        else:
            vars(layer)["call"] = before
