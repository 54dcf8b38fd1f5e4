"""Learning-rate schedules of published recipes. Steps count from 0."""

import math

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.types import Config, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Constant(keras.optimizers.schedules.LearningRateSchedule):
    """Constant learning rate, with an optional linear warm-up.

    `rate(step) = learning_rate * min(1, (step + 1) / warmup_steps)`, so the rate of the first update is not 0. Without
    warm-up, the schedule is the same as a float learning rate. The class exists so that configurations can select it by
    name. As with every schedule, the rate cannot be assigned during training.

    Source: the schedule of Sukhbaatar et al., "Adaptive Attention Span in Transformers" (2019).

    Args:
        learning_rate: positive float, the rate.
        warmup_steps: integer >= 0, number of steps in which the rate rises. Default 0.
        name: string, the name of the schedule.

    Returns:
        A schedule; called with a step (integer or integer tensor) it returns the rate, a float32 scalar.

    Raises:
        ValueError: if `learning_rate` is not a positive number, or `warmup_steps` is negative.

    Example:

    >>> float(Constant(0.5)(1000))
    0.5
    """

    def __init__(self, learning_rate: float, warmup_steps: int = 0, name: str = "Constant") -> None:
        super().__init__()
        checks.check_positive("learning_rate", learning_rate)
        checks.check_count("warmup_steps", warmup_steps, minimum=0)
        self.learning_rate = float(learning_rate)
        self.warmup_steps = int(warmup_steps)
        self.name = name

    def __call__(self, step: int | Tensor) -> Tensor:
        if self.warmup_steps == 0:
            return ops.convert_to_tensor(self.learning_rate, dtype="float32")
        count = ops.cast(step, "float32") + 1.0
        return self.learning_rate * ops.minimum(count / self.warmup_steps, 1.0)

    def get_config(self) -> Config:
        return {"learning_rate": self.learning_rate, "warmup_steps": self.warmup_steps, "name": self.name}


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class RsqrtNormalizedDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Constant rate for the first steps, then decay with the inverse square root of the step.

    `rate(step) = peak_learning_rate * sqrt(warmup_steps) / sqrt(max(step, warmup_steps))`. With `use_linear_warmup` the
    rate is multiplied by `min(1, step / warmup_steps)`, so the rate of the first update is 0.

    Source: the learning-rate factors "rsqrt_normalized_decay" and "linear_warmup" of tensor2tensor. The published
    PG-19 model of Roy et al., "Efficient Content-Based Sparse Attention with Routing Transformers" (2021), was trained
    with `RsqrtNormalizedDecay(0.01, 10_000)`. The paper describes a linear warm-up, but the code has none.

    Args:
        peak_learning_rate: positive float, the highest rate, at step `warmup_steps`. With `Adafactor` the rate is
            relative to the RMS of each weight.
        warmup_steps: positive integer, number of steps before the decay. Default 10000.
        use_linear_warmup: whether the rate rises from 0 during those steps. Default False, as published.
        name: string, the name of the schedule.

    Returns:
        A schedule; called with a step (integer or integer tensor) it returns the rate, a float32 scalar.

    Raises:
        ValueError: if `peak_learning_rate` is not a positive number, or `warmup_steps` is not a positive integer.

    Example:

    >>> schedule = RsqrtNormalizedDecay(0.01, warmup_steps=100)
    >>> [round(float(schedule(step)), 6) for step in (0, 100, 400)]
    [0.01, 0.01, 0.005]
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: int = 10_000,
        use_linear_warmup: bool = False,
        name: str = "RsqrtNormalizedDecay",
    ) -> None:
        super().__init__()
        checks.check_positive("peak_learning_rate", peak_learning_rate)
        self.peak_learning_rate = float(peak_learning_rate)
        checks.check_count("warmup_steps", warmup_steps)
        self.warmup_steps = int(warmup_steps)
        checks.check_switch("use_linear_warmup", use_linear_warmup)
        self.use_linear_warmup = use_linear_warmup
        self.name = name

    def __call__(self, step: int | Tensor) -> Tensor:
        step = ops.cast(step, "float32")
        scale = self.peak_learning_rate * math.sqrt(self.warmup_steps)
        rate = scale * ops.rsqrt(ops.maximum(step, float(self.warmup_steps)))
        if self.use_linear_warmup:
            rate = rate * ops.minimum(step / self.warmup_steps, 1.0)
        return rate

    def get_config(self) -> Config:
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_steps": self.warmup_steps,
            "use_linear_warmup": self.use_linear_warmup,
            "name": self.name,
        }


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """Noam schedule: linear warm-up, then decay with the inverse square root of the step, scaled by the model width.

    `rate(step) = scale * hidden_dim**-0.5 * min(t**-0.5, t * warmup_steps**-1.5)` with `t = step + 1`, so the rate of
    the first update is not 0. The highest rate, `scale * (hidden_dim * warmup_steps)**-0.5`, is reached at
    `t = warmup_steps`.

    Source: Vaswani et al., "Attention Is All You Need" (2017), equation 3, whose steps count from 1.

    Args:
        hidden_dim: positive integer, the width of the model.
        warmup_steps: positive integer, number of steps in which the rate rises. Default 4000.
        scale: positive float, factor of the rate. Default 1.0, as in the paper.
        name: string, the name of the schedule.

    Returns:
        A schedule; called with a step (integer or integer tensor) it returns the rate, a float32 scalar.

    Raises:
        ValueError: if `hidden_dim` or `warmup_steps` is not a positive integer, or `scale` is not a positive number.

    Example:

    >>> schedule = Noam(hidden_dim=100, warmup_steps=4)
    >>> [round(float(schedule(step)), 6) for step in (0, 3, 15)]
    [0.0125, 0.05, 0.025]
    """

    def __init__(self, hidden_dim: int, warmup_steps: int = 4000, scale: float = 1.0, name: str = "Noam") -> None:
        super().__init__()
        checks.check_count("hidden_dim", hidden_dim)
        self.hidden_dim = int(hidden_dim)
        checks.check_count("warmup_steps", warmup_steps)
        self.warmup_steps = int(warmup_steps)
        checks.check_positive("scale", scale)
        self.scale = float(scale)
        self.name = name

    def __call__(self, step: int | Tensor) -> Tensor:
        count = ops.cast(step, "float32") + 1.0
        scale = self.scale * self.hidden_dim**-0.5
        return scale * ops.minimum(ops.rsqrt(count), count * self.warmup_steps**-1.5)

    def get_config(self) -> Config:
        return {
            "hidden_dim": self.hidden_dim,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
            "name": self.name,
        }
