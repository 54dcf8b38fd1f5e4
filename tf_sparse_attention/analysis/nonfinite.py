"""Search for the first NaN or infinity in a model."""

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
    """Result of `find_nonfinite`. `str(result)` is one line of text.

    Attributes:
        kind: "inputs", "weights", "output", "loss" or "gradients".
        layer: path of the layer, None for inputs and the loss.
        weight: path of the weight for "weights" and "gradients", otherwise None.
        count: number of values that are NaN or infinite.
        size: number of all values.
    """

    kind: str
    layer: str | None
    weight: str | None
    count: int
    size: int

    def __str__(self) -> str:
        of_layer = "" if self.layer is None else f" of layer {self.layer}"
        of_weight = "" if self.weight is None else f" ({self.weight})"
        return f"{self.kind}{of_layer}{of_weight}: {self.count} of {self.size} values are NaN or infinite"


def find_nonfinite(
    model: keras.layers.Layer, inputs: Any, targets: Any = None, sample_weight: Any = None, training: bool = False
) -> Nonfinite | None:
    """Find the first layer, in the order of computation, with NaN or infinite values.

    Layers are checked when their calls end, inner layers first: weights, then the output if the layer's inputs are
    finite. If all layers are finite, the loss is checked, then gradients from the last layer to the first, the order in
    which a NaN spreads backwards. The model is not changed.

    Args:
        model: Keras model or layer, run without compilation.
        inputs: input of the model, an array or a structure of arrays.
        targets: targets of the compiled loss. None: gradients refer to the sum of all outputs. Default: None.
        sample_weight: weights of the targets. Default: None.
        training: whether to call layers in training mode, with dropout. Default: False.

    Returns:
        A `Nonfinite`, or None if all values are finite.

    Raises:
        ValueError: If `model` is not a layer, or if `targets` are given for a model that is not compiled.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(2, name="first"), keras.layers.Dense(2, name="second")])
        >>> model.build((None, 2))
        >>> model.layers[1].bias.assign([0.0, np.inf])
        >>> print(find_nonfinite(model, np.ones((1, 2), "float32")))  # doctest: +ELLIPSIS
        weights of layer .../second (.../second/bias): 1 of 2 values are NaN or infinite
    """
    if not isinstance(model, keras.layers.Layer):
        raise ValueError(f"`model` must be a Keras model or layer. Received: {model!r}.")
    if targets is not None and not getattr(model, "compiled", False):
        raise ValueError(f"`targets` must be None for a model that is not compiled. Received: model={model.name}.")
    if hasattr(model, "with_targets"):  # transforms the batch as in `train_step`
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
    """Search over layer calls for nonfinite weights and outputs.

    Args:
        model: the searched model; its weights are checked at construction.
    """

    def __init__(self, model: keras.layers.Layer) -> None:
        # Keys are ids: two layers of a model may have the same path.
        counts = {id(variable): (variable, *_count(variable.value)) for variable in model.variables}
        self._bad = {key: found for key, found in counts.items() if found[1]}
        self.owners: dict[int, str] = {}  # layer path by id of the weight, in the order of computation
        self.found: Nonfinite | None = None

    def look(self, layer: keras.layers.Layer, arguments: Any, outputs: Any) -> Any:
        """Check a finished call and return its outputs."""
        if self.found is None:
            self.found = self._own_weight(layer) or self._output(layer, arguments, outputs)
        return outputs

    def _own_weight(self, layer):
        # Weights of sublayers were checked at the calls of the sublayers.
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
        except (TypeError, NotImplementedError):  # symbolic tensors in a compiled loop have no values
            pass
        return None

    def unused_weight(self) -> Nonfinite | None:
        """Return a nonfinite weight of a layer that was not called, or None."""
        return next((self._weight(variable) for variable, *_ in self._bad.values()), None)


def _in_backward_pass(target, search, inputs, targets, sample_weight):
    """Return the first nonfinite value of the loss or the gradients of the weights, or None."""
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
    """Return the number of nonfinite values in all floating-point tensors, and the number of all values."""
    arrays = [
        to_numpy(tensor) for tensor in keras.tree.flatten(structure) if hasattr(tensor, "dtype") and _is_float(tensor)
    ]
    return sum(int(np.sum(~np.isfinite(array))) for array in arrays), sum(array.size for array in arrays)
