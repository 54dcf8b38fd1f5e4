"""Mixin for Keras optimizers that reports the global norm of the last gradient."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.optimizers.full_precision import dense_gradient
from tf_sparse_attention.types import Tensor


class GradientNorm:
    """Mixin for optimizers that stores the global norm of the last gradient.

    `gradient_norm = sqrt(sum over the weights of sum(g**2))`, in float32, before clipping by `clipnorm`, `clipvalue` or
    `global_clipnorm`. The mixin stores one number per weight, and works on every backend in a compiled training step.

    Note: with several TensorFlow replicas, each replica clips its gradient before the sum. `gradient_norm` is then the
    norm of the sum of clipped gradients.

    Put the mixin before the optimizer:

    >>> class MeasuredAdam(GradientNorm, keras.optimizers.Adam):
    ...     pass
    >>> model.compile(MeasuredAdam(1e-3), loss="mse")
    >>> model.fit(x, y)
    >>> float(model.optimizer.gradient_norm)
    """

    _is_measured = False  # whether the update in progress has set the norms

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        # One number per weight: with several replicas, TensorFlow updates each weight separately.
        self._squared_norms = [
            self.add_variable((), dtype="float32", name=f"squared_norm_{index}") for index in range(len(variables))
        ]

    def apply(self, grads: Sequence[Tensor | None], trainable_variables: Any = None) -> None:
        self._is_measured = False
        super().apply(grads, trainable_variables)

    def _clip_gradients(self, grads):
        clipped = super()._clip_gradients(grads)
        strategy = getattr(self, "_distribution_strategy", None)  # TensorFlow only: arrays of other backends are global
        if clipped is not grads and (strategy is None or strategy.num_replicas_in_sync == 1):
            self._is_measured = True
            # Only the sum is used, so unused entries at the end are zero.
            norms = [_squared_norm(gradient) for gradient in grads]
            for index, variable in enumerate(self._squared_norms):
                self.assign(variable, norms[index] if index < len(norms) else ops.zeros(()))
        return clipped

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        if not self._is_measured:
            self.assign(
                self._squared_norms[self._get_variable_index(variable)], _squared_norm(gradient, variable.shape)
            )
        super().update_step(gradient, variable, learning_rate)

    @property
    def gradient_norm(self) -> Tensor:
        """The global norm of the last gradient, a float32 scalar; 0 before the first update."""
        if not self.built:
            return ops.zeros((), dtype="float32")
        return ops.sqrt(sum(ops.convert_to_tensor(variable) for variable in self._squared_norms))


def _squared_norm(gradient, shape=None):
    """Return the sum of squares of a gradient; `shape` replaces the shape of a sparse gradient."""
    if shape is None and not hasattr(gradient, "indices"):  # the shape may be unknown
        return ops.sum(ops.square(ops.cast(gradient, "float32")))
    return ops.sum(ops.square(dense_gradient(gradient, gradient.shape if shape is None else shape)))
