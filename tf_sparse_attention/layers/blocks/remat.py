"""Rematerialization of a layer with state: the backward pass recomputes it, its state is updated once."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention.types import Tensor


def remat_call(layer: keras.layers.Layer, *tensors: Tensor | None, **arguments: Any) -> Tensor:
    """Call a layer without storing its activations for the backward pass.

    `keras.remat` around a layer would run its assignments twice, so that centroids and dropout seeds advance two steps.
    Here the layer runs without side effects on copies of its variables. Its new state is then assigned, and its losses
    added, once.

    Args:
        layer: a built layer.
        *tensors: inputs, or None, in the order of the layer's call.
        **arguments: keyword arguments without gradients; tensors among them are captured.

    Returns:
        The outputs of `layer(*tensors, **arguments)`.
    """
    trainable = [ops.copy(variable) for variable in layer.trainable_variables]
    state = [ops.copy(variable) for variable in layer.non_trainable_variables]

    def run(trainable, state, *tensors):
        return layer.stateless_call(trainable, state, *tensors, return_losses=True, **arguments)

    outputs, new_state, losses = keras.remat(run)(trainable, state, *tensors)
    for variable, value in zip(layer.non_trainable_variables, new_state, strict=True):
        variable.assign(ops.stop_gradient(value))
    for loss in losses[: len(losses) - _num_regularized(layer)]:
        layer.add_loss(loss)
    return outputs


def _num_regularized(layer):
    """Return the number of weight regularization losses, which end the list; the layer adds them itself."""
    return sum(1 for weight in layer.trainable_weights if weight.regularizer is not None)
