"""Target of the audit: its layers, calls, and outputs of its layers."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.analysis.causality.comparison import to_numpy
from tf_sparse_attention.analysis.gradients import without_gradients
from tf_sparse_attention.analysis.replaced import replaced
from tf_sparse_attention.types import Tensor


class LayerCall(NamedTuple):
    """Call of a layer, with its inputs and outputs of shape (B, T, ...) as arrays."""

    layer: keras.Layer
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]

    @property
    def path(self) -> str:
        """Path of the layer, or its name without a path."""
        return self.layer.path or self.layer.name


class AuditTarget:
    """Layer, model or function that can be called many times from the same state.

    Every call runs in a `keras.StatelessScope`: assignments to Keras variables (seeds, moving averages, centroids) are
    discarded after the call. So dropout is the same in all calls, and the audit does not change the target.

    Args:
        target: layer, model, or function of one argument.
        training: Boolean, passed to `target` if it has this argument.
    """

    def __init__(self, target: Any, training: bool) -> None:
        self.roots = [target] if isinstance(target, keras.Layer) else _layers_in_scope(target)
        self.layers = _layers_of(self.roots)
        self._training = training
        self._call = _caller(target)

    def build(self, inputs: Any) -> None:
        """Build layers that are not built; existing variables keep their values."""
        # A training call follows only if layers are still unbuilt, so that new state is not updated before the audit.
        for training in (False, self._training):
            if all(layer.built for layer in self.layers):
                return
            # Weights cannot be created in a stateless scope, so variables are restored explicitly.
            before = [(variable, ops.copy(variable.value)) for root in self.roots for variable in root.variables]
            self._call(_tensors(inputs), training)
            for variable, value in before:
                variable.assign(value)
            self.layers = _layers_of(self.roots)  # some layers create sublayers in `build`

    def __call__(
        self,
        inputs: Any,
        hook: Callable[[keras.Layer, list[Any], Any], Any] | None = None,
        values: Sequence[tuple[keras.Variable, Tensor]] = (),
        reduce: Callable[[Any], Any] | None = None,
    ) -> list[Tensor]:
        """Return the flat list of outputs.

        Args:
            inputs: input of the target.
            hook: function `hook(layer, arguments, outputs)` that returns new outputs of each layer call. Default: None.
            values: pairs of a variable and its value in this call. Default: none, all variables keep their values.
            reduce: function of the outputs, called in the state of the call, whose result replaces the outputs.
                Default: None.
        """
        # Disable rematerialization: values are the same, but on TensorFlow, tensors that a hook adds inside a
        # rematerialized call get no gradients.
        attributes = [(layer, "_remat_mode", None) for layer in self.layers]
        if hook:
            attributes += [_hooked(layer, hook) for layer in self.layers]
        with keras.StatelessScope(values), replaced(attributes):
            outputs = self._call(_tensors(inputs), self._training)
            outputs = outputs if reduce is None else reduce(outputs)
        return [output for output in keras.tree.flatten(outputs) if output is not None]

    def find_embeddings(self, inputs: Any, batch_and_length: tuple[int, int]) -> list[tuple[str, Tensor]]:
        """Return pairs of layer name and zeros with the shape of its output, for each embedding call, in call order."""
        found = []

        def note(layer, arguments, vectors):
            if self._embeds(layer, arguments[0], vectors, batch_and_length):
                found.append((layer.name, ops.zeros(vectors.shape, vectors.dtype)))
            return vectors

        self(inputs, note)
        return found

    def call_with_probes(
        self, inputs: Any, probes: Sequence[Tensor], batch_and_length: tuple[int, int]
    ) -> list[Tensor]:
        """Return the outputs with `probes` added to the outputs of embeddings, in the order of `find_embeddings`."""
        remaining = iter(probes)

        def add(layer, arguments, vectors):
            if not self._embeds(layer, arguments[0], vectors, batch_and_length):
                return vectors
            probed = vectors + next(remaining)
            # Keep a mask that `call` attached to the tensor. JAX tracers do not accept attributes, so on JAX the
            # gradients of such a model ignore padding.
            with contextlib.suppress(AttributeError):
                probed._keras_mask = vectors._keras_mask
            return probed

        return self(inputs, add)

    def layer_calls(
        self, inputs: Any, batch_and_length: tuple[int, int], positions: slice = slice(None)
    ) -> list[LayerCall]:
        """Return all calls of layers, in the order in which the calls end.

        Args:
            inputs: input of the target.
            batch_and_length: (B, T) of the inputs; tensors with other first axes are omitted.
            positions: positions whose values are kept. Default: all.
        """
        recorded = []

        def per_position(structure):
            tensors = [
                tensor
                for tensor in keras.tree.flatten(structure)
                if tuple(getattr(tensor, "shape", ()))[:2] == batch_and_length
            ]
            return [to_numpy(tensor[:, positions]) for tensor in tensors]

        def record(layer, arguments, outputs):
            # Symbolic tensors in a compiled loop have no values.
            with contextlib.suppress(TypeError, NotImplementedError):
                recorded.append(LayerCall(layer, per_position(arguments), per_position(outputs)))
            return outputs

        with without_gradients():
            self(inputs, record)
        return recorded

    def _embeds(self, layer, ids, vectors, batch_and_length):
        """Return whether a call maps token ids (B, T) to vectors (B, T, ...).

        Position embeddings have inputs (T,) and do not count. Keras's `Embedding` and any other layer without sublayers
        and with integer inputs count, except the audited layer itself.
        """
        if not (keras.ops.is_tensor(vectors) and keras.backend.is_float_dtype(_dtype(vectors))):
            return False
        if tuple(getattr(ids, "shape", ())) != batch_and_length or tuple(vectors.shape[:2]) != batch_and_length:
            return False
        if isinstance(layer, keras.layers.Embedding):
            return True
        is_leaf = layer not in self.roots and len(layer._flatten_layers()) == 1
        return is_leaf and keras.backend.is_int_dtype(_dtype(ids))


def _layers_of(roots):
    return list({id(layer): layer for root in roots for layer in root._flatten_layers()}.values())


def _tensors(structure):
    return keras.tree.map_structure(ops.convert_to_tensor, structure)


def _dtype(tensor):
    return keras.backend.standardize_dtype(tensor.dtype)


def _layers_in_scope(function):
    """Return the layers that a function uses: the object of a method, and layers named in the function's body."""
    values = [getattr(function, "__self__", function)]
    function = getattr(function, "__func__", function)
    if inspect.isfunction(function):
        scope = inspect.getclosurevars(function)
        values += [*scope.nonlocals.values(), *scope.globals.values()]
    return [value for value in values if isinstance(value, keras.Layer)]


def _caller(target):
    """Return `target` as a function of inputs and `training`, with `use_causal_mask=True` if supported."""
    is_layer = isinstance(target, keras.Layer)
    parameters = inspect.signature(target.call if is_layer else target).parameters
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    # Layers with a required `value`, such as `keras.layers.MultiHeadAttention`, are called for self-attention.
    takes_value = is_layer and required[1:2] == ["value"]
    causal = {"use_causal_mask": True} if "use_causal_mask" in parameters else {}

    def call(inputs, training):
        keywords = {**causal, "training": training} if is_layer or "training" in parameters else causal
        return target(inputs, inputs, **keywords) if takes_value else target(inputs, **keywords)

    return call


def _hooked(layer, hook):
    """Return an item for `replaced` that makes calls of `layer` return `hook(layer, list of arguments, outputs)`."""
    name = "quantized_call" if layer.quantization_mode else "call"
    call = getattr(layer, name)

    @functools.wraps(call)
    def hooked(*args, **kwargs):
        return hook(layer, [*args, *kwargs.values()], call(*args, **kwargs))

    return layer, name, hooked
