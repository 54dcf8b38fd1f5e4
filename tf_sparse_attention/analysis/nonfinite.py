"""Where numbers of a model stop being finite."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.analysis.causality.comparison import to_numpy
from tf_sparse_attention.analysis.causality.target import AuditTarget
from tf_sparse_attention.analysis.gradients import vector_jacobian_product


@dataclasses.dataclass(frozen=True)
class Nonfinite:
    """What `find_nonfinite` found; as text, a sentence.

    Attributes:
        kind: "inputs", "weights", "output", "loss" or "gradients".
        layer: path of the layer, None for inputs and the loss.
        weight: path of the weight, None for other kinds than "weights" and "gradients".
        count: how many numbers are not finite.
        size: how many there are.
    """

    kind: str
    layer: str | None
    weight: str | None
    count: int
    size: int

    def __str__(self) -> str:
        of_layer = "" if self.layer is None else f" of layer {self.layer}"
        of_weight = "" if self.weight is None else f" ({self.weight})"
        return f"{self.kind}{of_layer}{of_weight}: {self.count} of {self.size} numbers are NaN or infinite"


def find_nonfinite(
    model: keras.layers.Layer, inputs: Any, targets: Any = None, sample_weight: Any = None, training: bool = False
) -> Nonfinite | None:
    """Find the first layer, in the order of computation, of which something is NaN or infinite.

    Layers are looked at as their calls end, inner ones first: weights, then the output, unless what the layer was
    called with is no better. If all of them are finite the loss follows, and then gradients, from the last layer to the
    first: there a NaN spreads backwards. Nothing of the model is changed.

    Args:
        model: Keras model or layer, run without compilation.
        inputs: what it is called with: an array, or a structure of them.
        targets: of the loss that the model was compiled with. Default: None, gradients are those of the sum of all
            outputs.
        sample_weight: of the targets. Default: None.
        training: whether layers are called as in training, with dropout. Default: False.

    Returns:
        A `Nonfinite`, or None where all is finite.

    Raises:
        ValueError: if `model` is no layer, or there are targets for one that was not compiled.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(2, name="first"), keras.layers.Dense(2, name="second")])
        >>> model.build((None, 2))
        >>> model.layers[1].bias.assign([0.0, np.inf])
        >>> print(find_nonfinite(model, np.ones((1, 2), "float32")))  # doctest: +ELLIPSIS
        weights of layer .../second (.../second/bias): 1 of 2 numbers are NaN or infinite
    """
    if not isinstance(model, keras.layers.Layer):
        raise ValueError(f"`model` must be a Keras model or layer. Received: {model!r}.")
    if targets is not None and not getattr(model, "compiled", False):
        raise ValueError(f"`targets` must be None for a model that is not compiled. Received: model={model.name}.")
    if hasattr(model, "with_targets"):  # what its training step passes on
        inputs, targets, sample_weight = model.with_targets((inputs, targets, sample_weight))[-1]
    target = AuditTarget(model, training)
    target.build(inputs)
    bad_inputs = _count(inputs)
    if bad_inputs[0]:
        return Nonfinite("inputs", None, None, *bad_inputs)
    search = _Search(model)
    target(inputs, search.look)
    if search.found is None:
        search.found = search.unused_weight()
    return search.found or _in_backward_pass(target, search, inputs, targets, sample_weight)


class _Search:
    """Looks at the calls of layers as they end.

    Args:
        model: whose weights are looked at before.
    """

    def __init__(self, model: keras.layers.Layer) -> None:
        # By identity: two layers of a model may have the same path.
        counts = {id(variable): (variable, *_count(variable.value)) for variable in model.variables}
        self._bad = {key: found for key, found in counts.items() if found[1]}
        self.owners: dict[int, str] = {}  # layers by their weights, in the order of computation
        self.found: Nonfinite | None = None

    def look(self, layer: keras.layers.Layer, arguments: Any, outputs: Any) -> Any:
        """Take a call that ended, and returns its outputs."""
        if self.found is None:
            self.found = self._own_weight(layer) or self._output(layer, arguments, outputs)
        return outputs

    def _own_weight(self, layer):
        # Those of layers inside were looked at when these were called.
        own = [variable for variable in layer.variables if id(variable) not in self.owners]
        self.owners.update((id(variable), layer.path or layer.name) for variable in own)
        return next((self._weight(variable) for variable in own if id(variable) in self._bad), None)

    def _weight(self, variable):
        layer = self.owners.get(id(variable)) or variable.path.rpartition("/")[0]
        _, count, size = self._bad[id(variable)]
        return Nonfinite("weights", layer, variable.path, count, size)

    def _output(self, layer, arguments, outputs):
        try:
            count, size = _count(outputs)
            if count and not _count(arguments)[0]:
                return Nonfinite("output", layer.path or layer.name, None, count, size)
        except (TypeError, NotImplementedError):  # inside a compiled loop there are no values to look at
            pass
        return None

    def unused_weight(self) -> Nonfinite | None:
        """Return a weight of a layer that was not called, None if all are finite."""
        return next((self._weight(variable) for variable, *_ in self._bad.values()), None)


def _in_backward_pass(target, search, inputs, targets, sample_weight):
    """Return what is not finite in the loss or the gradients of the weights."""
    (model,) = target.roots
    variables = model.trainable_variables

    def compute(values):
        return target(inputs, values=list(zip(variables, values, strict=True)), reduce=reduce)

    def reduce(outputs):
        if targets is not None:
            return model.compute_loss(inputs, targets, outputs, sample_weight)
        numbers = [ops.sum(ops.cast(output, "float32")) for output in keras.tree.flatten(outputs) if _is_float(output)]
        return sum(numbers) if numbers else ops.zeros(())

    (loss,), pull_back = vector_jacobian_product(compute, [ops.copy(each.value) for each in variables])
    if targets is not None and _count(loss)[0]:
        return Nonfinite("loss", None, None, *_count(loss))
    gradients = dict(zip(map(id, variables), pull_back([ops.ones_like(loss)]), strict=True))
    variables = {id(variable): variable for variable in variables}
    for key in reversed([key for key in search.owners if key in variables]):
        count, size = _count(gradients[key])
        if count:
            return Nonfinite("gradients", search.owners[key], variables[key].path, count, size)
    return None


def _is_float(tensor):
    return tensor is not None and keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))


def _count(structure):
    """Return how many numbers of all floating-point tensors are not finite, and how many there are."""
    arrays = [
        to_numpy(tensor) for tensor in keras.tree.flatten(structure) if hasattr(tensor, "dtype") and _is_float(tensor)
    ]
    return sum(int(np.sum(~np.isfinite(array))) for array in arrays), sum(array.size for array in arrays)
