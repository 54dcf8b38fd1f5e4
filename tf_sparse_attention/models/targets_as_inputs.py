"""Training with targets as model inputs, to avoid logits of the full vocabulary."""

from typing import Any

import keras

from tf_sparse_attention.models.metrics import LanguageModelLoss, TokenMetric
from tf_sparse_attention.types import Config, Tensor


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
