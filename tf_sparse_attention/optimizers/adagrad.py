"""Adagrad with clipping of the step of each weight instead of the gradient."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.optimizers.full_precision import add_slot, dense_gradient, subtract
from tf_sparse_attention.types import Config, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Adagrad(keras.optimizers.Optimizer):
    """Adagrad with gradient clipping that does not affect the accumulators, as in adaptive-span models.

    For a gradient `g` of a weight `w`:

        s = s + g**2
        f = min(1, clip / (norm(g) + 1e-10))
        w = w - learning_rate * f * g / (sqrt(s) + epsilon)

    where `norm(g)` is the norm of the gradient of this weight. A large gradient enters `s` unclipped, so it reduces
    later steps. Clipping reduces only the current step. State: one float32 number per element of the weight. The update
    is float32 for weights of any dtype.

    Source: the optimizer of Sukhbaatar et al., "Adaptive Attention Span in Transformers" (2019). The character models
    of their "Augmenting self-attention with persistent memory" (2019) use
    `Adagrad(Constant(0.07, warmup_steps=32_000), clip=0.03)`.

    Note: differs from `keras.optimizers.Adagrad(clipnorm=...)`, which adds the clipped gradient to the accumulator.
    Adagrad's step is invariant to the scale of gradients. If `clipnorm` shrinks every gradient by a similar factor, the
    steps stay as large as without clipping.

    Args:
        learning_rate: float, `keras.optimizers.schedules.LearningRateSchedule` or callable without arguments. Default
            0.07.
        clip: positive float, the maximum norm of the gradient of a weight, or None for no limit. Default 0.03.
        initial_accumulator_value: float >= 0, initial value of the accumulators. Default 0.
        epsilon: positive float, added to the denominator, so that the step for a gradient of 0 is finite. Default
            1e-10.
        **kwargs: arguments of `keras.optimizers.Optimizer`, as for `Adafactor`.

    Raises:
        ValueError: if an argument is out of range.

    Example:

    >>> optimizer = Adagrad(Constant(0.07, warmup_steps=32_000), clip=0.03)
    >>> model.compile(optimizer, loss="sparse_categorical_crossentropy")
    """

    def __init__(
        self,
        learning_rate: Any = 0.07,
        clip: float | None = 0.03,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-10,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        if clip is not None:
            checks.check_positive("clip", clip)
        checks.check_not_negative("initial_accumulator_value", initial_accumulator_value)
        checks.check_positive("epsilon", epsilon)
        self.clip = clip
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        start = keras.initializers.Constant(self.initial_accumulator_value)
        self._accumulators = [add_slot(self, variable, "accumulator", initializer=start) for variable in variables]

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        gradient = dense_gradient(gradient, variable.shape)
        accumulator = self._accumulators[self._get_variable_index(variable)]
        total = ops.add(accumulator, ops.square(gradient))
        self.assign(accumulator, total)
        step = ops.cast(learning_rate, "float32")
        if self.clip is not None:
            norm = ops.sqrt(ops.sum(ops.square(gradient)))
            step = step * ops.minimum(1.0, self.clip / (norm + 1e-10))
        subtract(self, variable, step * gradient / (ops.sqrt(total) + self.epsilon))

    def get_config(self) -> Config:
        names = ("clip", "initial_accumulator_value", "epsilon")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
