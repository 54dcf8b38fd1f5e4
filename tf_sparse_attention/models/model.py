"""Base class of models, with a training step that combines layer state across replicas; targets as model inputs."""

import contextlib
from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers import data_parallel
from tf_sparse_attention.layers.parts.adaptation import LowRankMixin, layer_dtype_policy
from tf_sparse_attention.layers.parts.adaptive_span import find_spans
from tf_sparse_attention.models.metrics import LanguageModelLoss, TokenMetric
from tf_sparse_attention.types import Config, Tensor


class TrainStepMixin:
    """Training step of `Model`, as a mixin, because Keras changes the base classes of functional models."""

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._global_mean(args), data_parallel.deferred_updates():
            result = super().train_step(*args, **kwargs)
        data_parallel.apply_deferred(self._flatten_layers())
        return data_parallel.logs_to_average(result)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        with self._global_mean(args):
            return data_parallel.logs_to_average(super().test_step(*args, **kwargs))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        loss = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        return data_parallel.weight_by_rows(loss)

    def _global_mean(self, state_and_data):
        """Return a context in which the loss is averaged over the rows of all replicas."""
        if not data_parallel.in_several_replicas():
            return contextlib.nullcontext()
        x, *targets = keras.utils.unpack_x_y_sample_weight(state_and_data[-1])
        count_targets = getattr(self.loss, "count_targets", None)
        first = next(part for part in keras.tree.flatten(x) if part is not None)
        return data_parallel.global_mean(
            ops.shape(first)[0], None if count_targets is None else count_targets(*targets)
        )

    def shrink_windows(self, margin: int = 0) -> int | None:
        """Shrink the computed windows of adaptive spans to the current spans.

        Outputs stay the same, up to rounding, and take less time and memory. Call this method between training phases,
        not during `fit`, and before inference or export. Models of this library are retraced if needed. A surrounding
        `keras.Model`, `tf.function` or `jax.jit` is not retraced. A window has one of 16 sizes, so few programs are
        compiled.

        Args:
            margin: maximum growth of spans in the next training phase, in positions. Default 0.

        Returns:
            The largest computed window, or None if no layer has an adaptive span.

        Raises:
            ValueError: if `margin` is not a non-negative integer.
        """
        checks.check_count("margin", margin, minimum=0)
        for span in find_spans(self):
            span.shrink_window(margin)
        return max(self.computed_windows, default=None)

    @property
    def computed_windows(self) -> list[int]:
        """Computed window of each layer with an adaptive span, in positions. Can be set."""
        return [span.computed_window for span in find_spans(self)]

    @computed_windows.setter
    def computed_windows(self, windows: Sequence[int]) -> None:
        spans = find_spans(self)
        if len(windows) != len(spans):
            raise ValueError(f"`windows` must have one number per layer, {len(spans)}. Received: {windows}.")
        for span, window in zip(spans, windows, strict=True):
            span.computed_window = window

    # Programs contain the windows at tracing time, and another model that shares the layers can change the windows.
    # Keras calls these methods before each use of a program, so they retrace it if windows have changed.

    def make_train_function(self, force: bool = False) -> Any:
        return super().make_train_function(force or self._windows_changed("_training_windows"))

    def make_test_function(self, force: bool = False) -> Any:
        return super().make_test_function(force or self._windows_changed("_test_windows"))

    def make_predict_function(self, force: bool = False) -> Any:
        return super().make_predict_function(force or self._windows_changed("_prediction_windows"))

    def _windows_changed(self, name):
        """Return whether the windows differ from the attribute `name`, and update the attribute."""
        before, now = getattr(self, name, None), tuple(self.computed_windows)
        setattr(self, name, now)
        return before is not None and before != now

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras averages a batch over replicas to find its shapes. Averaging turns integers into floats, and fails for
        # uneven rows and for several workers (keras#20585). `fit` may run outside the scope of the model's strategy.
        strategy = getattr(self, "distribute_strategy", None)
        if iterator is not None and strategy is not None and strategy.num_replicas_in_sync > 1:
            iterator, data_batch = None, data_parallel.local_batch(strategy, next(iter(iterator)))
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class FunctionalModel(LowRankMixin, TrainStepMixin, keras.Model):
    """Functional `keras.Model` with the training step of `Model`; the result of `Model(inputs, outputs)`."""


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Model(LowRankMixin, TrainStepMixin, keras.Model):
    """A `keras.Model` that also trains routing layers on several TensorFlow replicas.

    On one device, and on JAX, it behaves like a `keras.Model`. With several TensorFlow replicas, each routing layer
    stores sums over its replica. After the gradient update, the training step adds the sums of all layers in one
    all-reduce. Centroids, weights and losses then equal the results of one device with the whole batch.

    Subclass `Model`, or create a functional model: `Model(inputs, outputs)`.

    Example:
        >>> inputs = keras.Input((None, 64))
        >>> outputs = tsa.layers.RoutingAttention(2, 32, 8, 64)(inputs, use_causal_mask=True)
        >>> model = tsa.models.Model(inputs, outputs)
    """

    _model_arguments: tuple[str, ...] = ()  # names of constructor arguments that are models

    def __new__(cls, *args: Any, **kwargs: Any) -> keras.Model:
        named = {"inputs", "outputs"} & set(kwargs)
        if cls is Model and len(args) + len(named) >= 2:
            # Keras would otherwise add its functional class to the bases of `Model`, for all subclasses.
            return FunctionalModel(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    def base_config(self, *names: str) -> Config:
        """Return the config entries of all models, of inner models, and of the attributes `names`."""
        models = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in self._model_arguments}
        values = {name: getattr(self, name) for name in names}
        return {"name": self.name, "trainable": self.trainable, "dtype": layer_dtype_policy(self), **models, **values}

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Self:
        models = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects=custom_objects)
            for name in cls._model_arguments
        }
        return super().from_config({**config, **models}, custom_objects)


class TargetsAsInputs:
    """Mixin of language models that compute their loss from targets, for adaptive vocabularies.

    If the loss is `language_model_loss()` and all metrics are from this library, `fit` and `evaluate` pass the targets
    as an input, and the model returns their -log p in nats. Other losses and metrics get log-probabilities of the full
    vocabulary. Subclasses set `loss_from_targets` to True if the loss from targets is cheaper.
    """

    loss_from_targets = False
    _nats_suffice = False

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)
        metrics = [metric for metric in keras.tree.flatten([metrics, weighted_metrics]) if metric is not None]
        self._nats_suffice = (
            isinstance(loss, LanguageModelLoss)
            and not loss.label_smoothing
            and all(isinstance(metric, TokenMetric) for metric in metrics)
        )

    def compile_from_config(self, config: Config) -> None:
        # Keras requires this method if a class overrides `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def train_step(self, *state_and_data: Any) -> Any:
        return super().train_step(*self.with_targets(*state_and_data))

    def test_step(self, *state_and_data: Any) -> Any:
        return super().test_step(*self.with_targets(*state_and_data))

    def with_targets(self, *state_and_data: Any) -> Any:
        """Return the arguments of a step with the targets added to the inputs."""
        *state, data = state_and_data
        if not (self.loss_from_targets and self._nats_suffice):
            return state_and_data
        inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        return *state, ({**inputs, "targets": targets}, targets, weights)


def split_targets(inputs: Tensor | dict[str, Tensor]) -> tuple[Any, Tensor | None]:
    """Split inputs of a language model into inputs without targets, and targets or None."""
    if not isinstance(inputs, dict) or "targets" not in inputs:
        return inputs, None
    return {name: value for name, value in inputs.items() if name != "targets"}, inputs["targets"]
