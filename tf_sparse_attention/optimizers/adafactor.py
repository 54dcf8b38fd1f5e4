"""Adafactor with the published update rule, which stores only factors of the second moment."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.optimizers.full_precision import add_slot, dense_gradient, subtract
from tf_sparse_attention.types import Config, Tensor

MATRIX_VIEWS = ("smallest", "last_two")


def second_moment_decay(step: int | Tensor, power: float = 0.8) -> Tensor:
    """Compute the decay of the second moment at a step: `1 - (step + 1)**-power`.

    Step 0 gives exactly 0, so the first gradient replaces the initial zeros and no bias correction is needed.
    Source: Shazeer and Stern, "Adafactor" (2018), section 7.2, whose steps count from 1.

    Args:
        step: number of previous updates, an integer or an integer tensor.
        power: positive float. The decay approaches 1 faster for a larger power. Default 0.8.

    Returns:
        A float32 scalar in [0, 1).
    """
    return 1.0 - ops.power(ops.cast(step, "float32") + 1.0, -power)


def matrix_axes(shape: Sequence[int], matrix_view: str = "smallest") -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the axes of a weight that are the rows and the columns of the factored matrix.

    "last_two": the last two axes; earlier axes index separate matrices. "smallest": the axes before and after the first
    cut with the smallest factors. Then a kernel (D, N, H) is a matrix (D, N H), and a kernel (N, H, D) is a matrix
    (N H, D).

    Args:
        shape: shape of the weight, a tuple of integers.
        matrix_view: "smallest" or "last_two". They are equal up to rank 2. Default "smallest".

    Returns:
        A pair of tuples of axes (rows, columns), rows before columns. None below rank 2: the weight is not factored.
    """
    rank = len(shape)
    if rank < 2:
        return None
    if matrix_view == "last_two":
        return (rank - 2,), (rank - 1,)
    cut = min(range(1, rank), key=lambda axis: math.prod(shape[:axis]) + math.prod(shape[axis:]))
    return tuple(range(cut)), tuple(range(cut, rank))


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Adafactor(keras.optimizers.Optimizer):
    """Adafactor: adaptive steps from a factored second moment, scaled by the RMS of each weight.

    For a gradient `g` of a weight `w`, with `b = 1 - (step + 1)**-decay_power`:

        s = g**2 + epsilon
        R = b R + (1 - b) mean of s over the columns;  C = b C + (1 - b) mean of s over the rows
        u = g * rsqrt(R / mean(R)) * rsqrt(C)                rank >= 2
        V = b V + (1 - b) s;  u = g * rsqrt(V)               rank 0 and 1
        u = u / max(1, rms(u) / clip_threshold)
        d = learning_rate * max(rms(w), parameter_scale_floor) * u
        M = beta_1 M + (1 - beta_1) d;  d = M                only if beta_1 > 0
        w = w - d

    where `rms(x) = sqrt(mean(x**2))`. The state of an n by m matrix has n + m numbers instead of n m; `beta_1` > 0 adds
    n m numbers. Accumulators and updates are float32 for weights of any dtype. Rows and columns with zero gradients
    stay unchanged and do not affect other rows and columns. On TensorFlow, sparse gradients of embeddings are converted
    to dense gradients, so the moments of unused rows decay, too.

    Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018), algorithms 4
    to 6, as in tensor2tensor. The published Routing Transformers were trained with
    `Adafactor(RsqrtNormalizedDecay(0.01, 10_000))` and default values for all other arguments.

    Note: differs from `keras.optimizers.Adafactor`. The learning rate is not limited to `1 / sqrt(step + 1)`. Matrices
    have no full-size accumulator. A gradient with a zero row and a zero column does not give NaN.

    Note: differs from the paper. Weights of rank > 2 are viewed as one matrix, see `matrix_view`.

    Args:
        learning_rate: float, `keras.optimizers.schedules.LearningRateSchedule` or callable without arguments: the
            step size relative to the RMS of the weight, or absolute without `multiply_by_parameter_scale`. Default
            0.01.
        beta_1: float in [0, 1), the momentum. With 0 no momentum is stored. Default 0.0.
        decay_power: positive float. For a larger power, `b` approaches 1 faster. Default 0.8.
        clip_threshold: positive float, the maximum root mean square of `u`, or None for no limit. Independent of
            `clipnorm`, `clipvalue` and `global_clipnorm`, which clip the gradient. Default 1.0.
        multiply_by_parameter_scale: whether steps are relative to the RMS of the weight. Default True.
        parameter_scale_floor: float >= 0, lower bound of the RMS in this scale, so that weights of 0 can change.
            Default 1e-3.
        epsilon: float >= 1e-30, added to squared gradients. Default 1e-30.
        matrix_view: "smallest" views a weight of rank > 2 as the matrix with the least state. "last_two", as published,
            factors the last two axes and stores a pair of factors per index of the earlier axes. For a kernel of shape
            (1032, 8, 129), the state has 2,064 numbers with "smallest" and 141,384 with "last_two". Default "smallest".
        **kwargs: arguments of `keras.optimizers.Optimizer`: `weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`, `loss_scale_factor`,
            `gradient_accumulation_steps`, `name`.

    Raises:
        ValueError: if an argument is out of range.

    Example:

    >>> optimizer = Adafactor(RsqrtNormalizedDecay(0.01, warmup_steps=10_000))
    >>> model.compile(optimizer, loss="sparse_categorical_crossentropy")
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        beta_1: float = 0.0,
        decay_power: float = 0.8,
        clip_threshold: float | None = 1.0,
        multiply_by_parameter_scale: bool = True,
        parameter_scale_floor: float = 1e-3,
        epsilon: float = 1e-30,
        matrix_view: str = "smallest",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        checks.check_rate("beta_1", beta_1)
        checks.check_positive("decay_power", decay_power)
        if clip_threshold is not None:
            checks.check_positive("clip_threshold", clip_threshold)
        checks.check_switch("multiply_by_parameter_scale", multiply_by_parameter_scale)
        checks.check_not_negative("parameter_scale_floor", parameter_scale_floor)
        checks.check_positive("epsilon", epsilon)
        checks.check_choice("matrix_view", matrix_view, MATRIX_VIEWS)
        # The state starts at 0 and late in training receives (1 - b) of a new gradient. With a smaller epsilon it would
        # underflow to 0, whose reciprocal root is infinite.
        if epsilon < 1e-30:
            raise ValueError(f"`epsilon` must be at least 1e-30. Received: epsilon={epsilon!r}.")
        self.beta_1 = beta_1
        self.decay_power = decay_power
        self.clip_threshold = clip_threshold
        self.multiply_by_parameter_scale = multiply_by_parameter_scale
        self.parameter_scale_floor = parameter_scale_floor
        self.epsilon = epsilon
        self.matrix_view = matrix_view

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._row_moments, self._column_moments, self._second_moments, self._momentums = [], [], [], []
        for variable in variables:
            rank = len(variable.shape)
            matrix = matrix_axes(variable.shape, self.matrix_view)
            rows, columns = matrix or ((), ())
            axes = tuple(range(rank))
            self._row_moments.append(matrix and add_slot(self, variable, "row_moment", _without(axes, columns)))
            self._column_moments.append(matrix and add_slot(self, variable, "column_moment", _without(axes, rows)))
            self._second_moments.append(None if matrix else add_slot(self, variable, "second_moment", axes))
            self._momentums.append(add_slot(self, variable, "momentum", axes) if self.beta_1 > 0 else None)

    def get_slots(self, variable: keras.Variable) -> dict[str, keras.Variable]:
        """Return the optimizer state of a weight, a dictionary of variables.

        Args:
            variable: a weight for which the optimizer was built.

        Returns:
            Dictionary with "row_moment" and "column_moment", or "second_moment" below rank 2; also "momentum" if
            `beta_1` > 0.
        """
        index = self._get_variable_index(variable)
        slots = {
            "row_moment": self._row_moments[index],
            "column_moment": self._column_moments[index],
            "second_moment": self._second_moments[index],
            "momentum": self._momentums[index],
        }
        return {name: slot for name, slot in slots.items() if slot is not None}

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        gradient = dense_gradient(gradient, variable.shape)
        step = ops.cast(learning_rate, "float32")
        if self.multiply_by_parameter_scale:
            step = step * ops.maximum(_rms(ops.cast(variable, "float32")), self.parameter_scale_floor)
        direction = self._normalized(gradient, index)
        if self.clip_threshold is not None:
            step = step / ops.maximum(_rms(direction) / self.clip_threshold, 1.0)
        update = step * direction
        momentum = self._momentums[index]
        if momentum is not None:
            update = ops.multiply(momentum, self.beta_1) + (1.0 - self.beta_1) * update
            self.assign(momentum, update)
        subtract(self, variable, update)

    def _normalized(self, gradient, index):
        """Divide the gradient by the root of its second moment: `u` before clipping."""
        decay = second_moment_decay(self.iterations, self.decay_power)
        squares = ops.square(gradient) + self.epsilon
        matrix = matrix_axes(gradient.shape, self.matrix_view)
        if matrix is None:
            return gradient * ops.rsqrt(self._average(self._second_moments[index], squares, decay))
        rows, columns = matrix
        row_moment = self._average(self._row_moments[index], ops.mean(squares, axis=columns), decay)
        column_moment = self._average(self._column_moments[index], ops.mean(squares, axis=rows), decay)
        # Row axes come before column axes, so their indices stay valid without the columns.
        overall = ops.mean(row_moment, axis=rows, keepdims=True)
        # Two factors instead of one quotient under a root: the moments of a zero row and a zero column are 1e-30, and
        # float32 underflows in their product, or in their quotient with a mean of 1e8 or more.
        row_factor = ops.expand_dims(ops.rsqrt(row_moment) * ops.sqrt(overall), columns)
        column_factor = ops.expand_dims(ops.rsqrt(column_moment), rows)
        return gradient * row_factor * column_factor

    def _average(self, slot, new, decay):
        value = ops.multiply(slot, decay) + (1.0 - decay) * new
        self.assign(slot, value)
        return value

    def get_config(self) -> Config:
        config = super().get_config()
        names = ("beta_1", "decay_power", "clip_threshold", "multiply_by_parameter_scale", "parameter_scale_floor")
        config.update({name: getattr(self, name) for name in (*names, "epsilon", "matrix_view")})
        return config


def _without(axes, removed):
    return tuple(axis for axis in axes if axis not in removed)


def _rms(values):
    return ops.sqrt(ops.mean(ops.square(values)))
