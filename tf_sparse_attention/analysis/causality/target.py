"""The target of the audit: its layers, how it is called, and the outputs of its layers."""

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
    """A call of a layer: its inputs and outputs of shape (B, T, ...), as arrays."""

    layer: keras.Layer
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]

    @property
    def path(self) -> str:
        """What the layer is called in reports."""
        return self.layer.path or self.layer.name


class AuditTarget:
    """A layer, model or function that can be called many times, each time from the same state.

    Every call runs in a `keras.StatelessScope`: what it assigns to Keras variables (seeds, moving averages,
    centroids) is seen by that call alone. So two calls draw the same dropout, and the audit leaves no trace.

    Args:
        target: layer, model, or function of one argument.
        training: Boolean, passed on where `target` takes it.
    """

    def __init__(self, target: Any, training: bool) -> None:
        self.roots = [target] if isinstance(target, keras.Layer) else _layers_in_scope(target)
        self.layers = _layers_of(self.roots)
        self._training = training
        self._call = _caller(target)

    def build(self, inputs: Any) -> None:
        """Make the weights that are still missing; those that exist keep their values."""
        # In training only where something is left, so that new state is not updated before the audit.
        for training in (False, self._training):
            if all(layer.built for layer in self.layers):
                return
            # Weights cannot be made in a stateless scope, so this call is undone by hand.
            before = [(variable, ops.copy(variable.value)) for root in self.roots for variable in root.variables]
            self._call(_tensors(inputs), training)
            for variable, value in before:
                variable.assign(value)
            self.layers = _layers_of(self.roots)  # some make sublayers as they are built

    def __call__(
        self,
        inputs: Any,
        hook: Callable[[keras.Layer, list[Any], Any], Any] | None = None,
        values: Sequence[tuple[keras.Variable, Tensor]] = (),
        reduce: Callable[[Any], Any] | None = None,
    ) -> list[Tensor]:
        """Return the flat list of outputs; `hook(layer, arguments, outputs)` may replace those of any layer.

        Args:
            inputs: what the target is called with.
            hook: see above. Default: None.
            values: pairs of a variable and its value in this call. Default: none, all have their own.
            reduce: function of the outputs, called in the state of the call, whose result is returned instead of them.
                Default: None.
        """
        # Rematerialised calls give the same values, but on TensorFlow no gradient to what a hook adds inside of them.
        attributes = [(layer, "_remat_mode", None) for layer in self.layers]
        if hook:
            attributes += [_hooked(layer, hook) for layer in self.layers]
        with keras.StatelessScope(values), replaced(attributes):
            outputs = self._call(_tensors(inputs), self._training)
            outputs = outputs if reduce is None else reduce(outputs)
        return [output for output in keras.tree.flatten(outputs) if output is not None]

    def find_embeddings(self, inputs: Any, batch_and_length: tuple[int, int]) -> list[tuple[str, Tensor]]:
        """Return (layer name, zeros of the shape of its output) for every embedding of token ids, in call order."""
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
        """Return the outputs when `probes` are added to what the embeddings put out, in the order found above."""
        remaining = iter(probes)

        def add(layer, arguments, vectors):
            if not self._embeds(layer, arguments[0], vectors, batch_and_length):
                return vectors
            probed = vectors + next(remaining)
            # A mask that `call` itself attached would be lost with the tensor. JAX's tracers take no attributes, so
            # there such a model is differentiated as if nothing were padding.
            with contextlib.suppress(AttributeError):
                probed._keras_mask = vectors._keras_mask
            return probed

        return self(inputs, add)

    def layer_calls(
        self, inputs: Any, batch_and_length: tuple[int, int], positions: slice = slice(None)
    ) -> list[LayerCall]:
        """Return every call of a layer, in the order in which the calls end.

        Args:
            inputs: what the target is called with.
            batch_and_length: (B, T) of the inputs; tensors of other shapes are left out.
            positions: those of which values are kept. Default: all.
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
            # Inside a compiled loop there are no values to look at.
            with contextlib.suppress(TypeError, NotImplementedError):
                recorded.append(LayerCall(layer, per_position(arguments), per_position(outputs)))
            return outputs

        with without_gradients():
            self(inputs, record)
        return recorded

    def _embeds(self, layer, ids, vectors, batch_and_length):
        """Whether this call turned token ids (B, T) into vectors (B, T, ...).

        Position tables look up (T,) and are no embeddings of tokens. Besides Keras's Embedding any layer without
        sublayers counts when it got integers, except the audited one: its output is what is audited.
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
    """The layers a function can reach: the one it is a method of, and those its body names."""
    values = [getattr(function, "__self__", function)]
    function = getattr(function, "__func__", function)
    if inspect.isfunction(function):
        scope = inspect.getclosurevars(function)
        values += [*scope.nonlocals.values(), *scope.globals.values()]
    return [value for value in values if isinstance(value, keras.Layer)]


def _caller(target):
    """`target` as a function of its inputs and `training`, called with `use_causal_mask` where supported."""
    is_layer = isinstance(target, keras.Layer)
    parameters = inspect.signature(target.call if is_layer else target).parameters
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    # Self-attention with a layer that has no default for it, such as `keras.layers.MultiHeadAttention`.
    takes_value = is_layer and required[1:2] == ["value"]
    causal = {"use_causal_mask": True} if "use_causal_mask" in parameters else {}

    def call(inputs, training):
        keywords = {**causal, "training": training} if is_layer or "training" in parameters else causal
        return target(inputs, inputs, **keywords) if takes_value else target(inputs, **keywords)

    return call


def _hooked(layer, hook):
    """What makes every call of `layer` return `hook(layer, list of arguments, outputs)`, for `replaced`."""
    name = "quantized_call" if layer.quantization_mode else "call"
    call = getattr(layer, name)

    @functools.wraps(call)
    def hooked(*args, **kwargs):
        return hook(layer, [*args, *kwargs.values()], call(*args, **kwargs))

    return layer, name, hooked
