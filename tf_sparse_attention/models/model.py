"""The base of the library's models: a `keras.Model` whose training step updates averaged state of layers."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers import data_parallel
from tf_sparse_attention.layers.parts.adaptation import LowRankMixin, layer_dtype_policy
from tf_sparse_attention.layers.parts.adaptive_span import find_spans
from tf_sparse_attention.types import Config


class TrainStepMixin:
    """The training step of `Model`; a class of its own, since Keras changes the bases of a class made functional."""

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
        """Returns the context in which the loss of a step is that of one device on the rows of all replicas."""
        if not data_parallel.in_several_replicas():
            return contextlib.nullcontext()
        x, *targets = keras.utils.unpack_x_y_sample_weight(state_and_data[-1])
        count_targets = getattr(self.loss, "count_targets", None)
        first = next(part for part in keras.tree.flatten(x) if part is not None)
        return data_parallel.global_mean(
            ops.shape(first)[0], None if count_targets is None else count_targets(*targets)
        )

    def shrink_windows(self, margin: int = 0) -> int | None:
        """Shrinks the windows of layers with an adaptive span to what their spans need now.

        The outputs stay the same, to rounding; they take less time and memory. Call it between training phases, not
        during `fit`, and before inference or export. Models of this library that share the layers are traced again
        where needed; a `keras.Model` around them, a `tf.function` or a `jax.jit` keep the windows they were traced
        with. A window has one of 16 sizes (see `ops.span.needed_window`), which limits how many programs are compiled.

        Args:
            margin: positions by which spans can grow in the next phase of training. Default 0.

        Returns:
            The largest window computed now, None if no layer has an adaptive span.

        Raises:
            ValueError: if `margin` is no integer of 0 or more.
        """
        checks.check_count("margin", margin, minimum=0)
        for span in find_spans(self):
            span.shrink_window(margin)
        return max(self.computed_windows, default=None)

    @property
    def computed_windows(self) -> list[int]:
        """The positions that each layer with an adaptive span computes, a list of integers; may be assigned to."""
        return [span.computed_window for span in find_spans(self)]

    @computed_windows.setter
    def computed_windows(self, windows: Sequence[int]) -> None:
        spans = find_spans(self)
        if len(windows) != len(spans):
            raise ValueError(f"`windows` must have a number for each of {len(spans)} layers. Received: {windows}.")
        for span, window in zip(spans, windows, strict=True):
            span.computed_window = window

    # Programs hold the windows they were traced with, and other models may share the layers. Keras calls these methods
    # before each use of a program, so one with other windows is traced again here.

    def make_train_function(self, force: bool = False) -> Any:
        return super().make_train_function(force or self._windows_changed("_training_windows"))

    def make_test_function(self, force: bool = False) -> Any:
        return super().make_test_function(force or self._windows_changed("_test_windows"))

    def make_predict_function(self, force: bool = False) -> Any:
        return super().make_predict_function(force or self._windows_changed("_prediction_windows"))

    def _windows_changed(self, name):
        """Returns whether the windows differ from those stored under a name, and stores them."""
        before, now = getattr(self, name, None), tuple(self.computed_windows)
        setattr(self, name, now)
        return before is not None and before != now

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras averages a batch over the replicas to learn its shapes, which makes floats of integers, and fails where
        # one has fewer rows and over several workers (keras#20585). The strategy is that of the model, in whose scope
        # `fit` need not be called.
        strategy = getattr(self, "distribute_strategy", None)
        if iterator is not None and strategy is not None and strategy.num_replicas_in_sync > 1:
            iterator, data_batch = None, data_parallel.local_batch(strategy, next(iter(iterator)))
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class FunctionalModel(LowRankMixin, TrainStepMixin, keras.Model):
    """What `Model(inputs, outputs)` makes: a functional `keras.Model` with the training step of `Model`."""


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Model(LowRankMixin, TrainStepMixin, keras.Model):
    """A `keras.Model` that also trains routing layers on several TensorFlow replicas.

    On one device, and on JAX, it is a `keras.Model`. Under a `tf.distribute` strategy with several replicas, routing
    layers leave the sums of their replica in a variable; after the gradients the training step adds them up with one
    reduction for the whole model, so that the centroids, the weights and the losses equal those of one device on the
    joined batch.

    Subclass it, or use it as a functional model: `Model(inputs, outputs)`.

    Example:
        >>> inputs = keras.Input((None, 64))
        >>> outputs = tsa.layers.RoutingAttention(2, 32, 8, 64)(inputs, use_causal_mask=True)
        >>> model = tsa.models.Model(inputs, outputs)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> keras.Model:
        named = {"inputs", "outputs"} & set(kwargs)
        if cls is Model and len(args) + len(named) >= 2:
            # Keras would put its functional class under `Model` itself, and so under every subclass of it.
            return FunctionalModel(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    def base_config(self) -> Config:
        """Returns what the configs of all models have; `keras.Model` would infer the arguments."""
        return {"name": self.name, "trainable": self.trainable, "dtype": layer_dtype_policy(self)}
