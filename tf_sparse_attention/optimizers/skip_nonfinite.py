"""A mixin that leaves out updates whose gradients are not finite, for any Keras optimizer."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.replicas import in_several_replicas
from tf_sparse_attention.types import Tensor


class SkipNonfinite:
    """Mixin for optimizers that leave out an update if a gradient of it has a NaN or an infinity.

    Such an update changes nothing but `num_skipped`: neither weights nor the state of the optimizer, its step and what
    `gradient_accumulation_steps` gathered among them. Works on every backend inside a compiled training step, on any
    devices and replicas, none of which makes an update that one has to leave out. The check reads each gradient once;
    several TensorFlow replicas also copy weights and state in each update.

    `keras.optimizers.LossScaleOptimizer` leaves them out as well, but halves a factor of the loss each time, which is
    for float16.

    Put it before the optimizer, and before `GradientNorm`:

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
        # The last variable, so that a checkpoint without it has the others in the same places.
        self._num_skipped = self.add_variable((), dtype="int32", name="num_skipped")

    def apply(self, grads: Sequence[Tensor | None], trainable_variables: Any = None) -> None:
        if self._is_selecting:  # by `stateless_apply`, afterwards
            super().apply(grads, trainable_variables)
            return
        if not self.built:
            self.build(list(trainable_variables))
        update = super().apply
        if in_several_replicas():
            changed = [*self._trainable_variables, *self.variables]
            is_finite = update_if(lambda: update(grads, trainable_variables), all_finite(grads), changed)
            self._num_skipped.assign(self._num_skipped + ops.cast(~is_finite, "int32"))
            return
        ops.cond(all_finite(grads), lambda: update(grads, trainable_variables), self._count_skipped)

    def _count_skipped(self):
        self._num_skipped.assign(self._num_skipped + 1)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        self._is_selecting = True
        try:
            new_weights, new_state = super().stateless_apply(optimizer_variables, grads, trainable_variables)
        finally:
            self._is_selecting = False
        is_finite = all_finite(grads)
        new_state[-1] = optimizer_variables[-1]
        weights, state = (
            [ops.where(is_finite, new, old) for new, old in zip(after, before, strict=True)]
            for after, before in ((new_weights, trainable_variables), (new_state, optimizer_variables))
        )
        state[-1] = state[-1] + ops.cast(~is_finite, state[-1].dtype)
        return weights, state

    @property
    def num_skipped(self) -> Tensor:
        """Updates that were left out so far, an int32 scalar."""
        return ops.convert_to_tensor(self._num_skipped) if self.built else ops.zeros((), "int32")


def all_finite(gradients: Sequence[Tensor | None]) -> Tensor:
    """Return whether all numbers of all gradients are finite, bool (); of sparse ones those of their rows."""
    values = [getattr(gradient, "values", gradient) for gradient in gradients if gradient is not None]
    return ops.all(ops.stack([ops.all(ops.isfinite(value)) for value in values]))


def update_if(update: Callable[[], None], condition: Tensor, variables: Sequence[keras.Variable]) -> Tensor:
    """Run an update of variables, which then have the values from before unless all replicas meet a condition.

    A condition around the update would not do, since the replicas exchange gradients in it. A copy of all `variables`
    lives as long as it runs.

    Args:
        update: the function that changes the variables.
        condition: bool (), of this replica.
        variables: all that it may change.

    Returns:
        Whether all replicas met the condition, bool (), the same on each.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    failed = context.all_reduce(tf.distribute.ReduceOp.SUM, 1.0 - tf.cast(condition, "float32"))
    is_met = tf.equal(failed, 0.0)
    before = [tf.identity(variable.value) for variable in variables]
    update()

    def choose(strategy, before, is_met):
        for variable, value in zip(variables, before, strict=True):
            strategy.extended.update(variable.value, _keep_if, args=(is_met, value), group=False)

    context.merge_call(choose, args=(before, is_met))
    return is_met


def _keep_if(variable, is_met, before):
    import tensorflow as tf

    variable.assign(tf.where(is_met, variable, before))
