"""Mixins for Keras optimizers: report the norm of the last gradient, and skip updates with nonfinite gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.backends import in_several_replicas
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


class SkipNonfinite:
    """Mixin for optimizers that skips an update if a gradient has a NaN or an infinity.

    A skipped update changes only `num_skipped`. Weights and optimizer state stay unchanged, including the step and
    accumulated gradients. The mixin works on every backend in a compiled training step, on any number of devices. If
    one replica must skip an update, all replicas skip it. The check reads each gradient once. With several TensorFlow
    replicas, each update also copies weights and state.

    `keras.optimizers.LossScaleOptimizer` also skips these updates. `LossScaleOptimizer` halves the loss scale each
    time, which is intended for float16.

    Put the mixin before the optimizer, and before `GradientNorm`:

    >>> class CarefulAdam(SkipNonfinite, keras.optimizers.Adam):
    ...     pass
    >>> model.compile(CarefulAdam(1e-3), loss="mse")
    >>> model.fit(x, y)
    >>> int(model.optimizer.num_skipped)
    """

    _is_selecting = False

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        # The last variable, so that the order of the others equals that of the optimizer without the mixin.
        self._num_skipped = self.add_variable((), dtype="int32", name="num_skipped")

    def apply(self, grads: Sequence[Tensor | None], trainable_variables: Any = None) -> None:
        if self._is_selecting:  # `stateless_apply` selects afterwards
            super().apply(grads, trainable_variables)
            return
        if not self.built:
            self.build(list(trainable_variables))
        update = super().apply
        if in_several_replicas():
            changed = [*self._trainable_variables, *self.variables]
            is_finite = _update_if(lambda: update(grads, trainable_variables), _all_finite(grads), changed)
            self._num_skipped.assign(self._num_skipped + ops.cast(~is_finite, "int32"))
            return
        ops.cond(_all_finite(grads), lambda: update(grads, trainable_variables), self._count_skipped)

    def _count_skipped(self):
        self._num_skipped.assign(self._num_skipped + 1)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        self._is_selecting = True
        try:
            new_weights, new_state = super().stateless_apply(optimizer_variables, grads, trainable_variables)
        finally:
            self._is_selecting = False
        is_finite = _all_finite(grads)
        new_state[-1] = optimizer_variables[-1]
        weights, state = (
            [ops.where(is_finite, new, old) for new, old in zip(after, before, strict=True)]
            for after, before in ((new_weights, trainable_variables), (new_state, optimizer_variables))
        )
        state[-1] = state[-1] + ops.cast(~is_finite, state[-1].dtype)
        return weights, state

    @property
    def num_skipped(self) -> Tensor:
        """Number of skipped updates, an int32 scalar."""
        return ops.convert_to_tensor(self._num_skipped) if self.built else ops.zeros((), "int32")


def _all_finite(gradients: Sequence[Tensor | None]) -> Tensor:
    """Return whether all gradients are finite, bool (). The values of sparse gradients are checked."""
    values = [getattr(gradient, "values", gradient) for gradient in gradients if gradient is not None]
    return ops.all(ops.stack([ops.all(ops.isfinite(value)) for value in values]))


def _update_if(update: Callable[[], None], condition: Tensor, variables: Sequence[keras.Variable]) -> Tensor:
    """Run an update of variables, undo it unless the condition holds on all replicas, and return whether it holds.

    The update itself cannot be conditional, since replicas exchange gradients in it. The copy of all `variables` needs
    as much memory as they do.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    failed = context.all_reduce(tf.distribute.ReduceOp.SUM, 1.0 - tf.cast(condition, "float32"))
    is_met = tf.equal(failed, 0.0)
    before = [tf.identity(variable.value) for variable in variables]
    update()

    def restore(variable, is_met, value):
        variable.assign(tf.where(is_met, variable, value))

    def restore_all(strategy, before, is_met):
        for variable, value in zip(variables, before, strict=True):
            strategy.extended.update(variable.value, restore, args=(is_met, value), group=False)

    context.merge_call(restore_all, args=(before, is_met))
    return is_met
