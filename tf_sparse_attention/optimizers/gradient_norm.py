"""A mixin that reports the norm of the last gradient, for any Keras optimizer."""

from collections.abc import Sequence

import keras
from keras import ops

from tf_sparse_attention.optimizers.full_precision import dense_gradient
from tf_sparse_attention.types import Tensor


class GradientNorm:
    """Mixin for optimizers that keep the norm of the gradient of the last update.

    `gradient_norm = sqrt(sum over the weights of sum(g**2))`, in float32, of the gradients as they reach the update
    rule: summed over replicas, after `clipnorm` and its kin, before the rule's own clipping. It costs one number of
    state a weight and works on every backend, inside a compiled training step.

    Put it before the optimizer:

    >>> class MeasuredAdam(GradientNorm, keras.optimizers.Adam):
    ...     pass
    >>> model.compile(MeasuredAdam(1e-3), loss="mse")
    >>> model.fit(x, y)
    >>> float(model.optimizer.gradient_norm)
    """

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        # One number a weight rather than one in all: a strategy with several replicas updates each weight by itself.
        self._squared_norms = [
            self.add_variable((), dtype="float32", name=f"squared_norm_{index}") for index in range(len(variables))
        ]

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        squared_norm = ops.sum(ops.square(dense_gradient(gradient, variable.shape)))
        self.assign(self._squared_norms[self._get_variable_index(variable)], squared_norm)
        super().update_step(gradient, variable, learning_rate)

    @property
    def gradient_norm(self) -> Tensor:
        """The norm of the last gradient, a float32 scalar; 0 before the first update."""
        if not self.built:
            return ops.zeros((), dtype="float32")
        return ops.sqrt(sum(ops.convert_to_tensor(variable) for variable in self._squared_norms))
