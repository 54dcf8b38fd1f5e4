"""Training steps that tell a language model its targets, so that it need not weigh every word at every position."""

import keras

from tf_sparse_attention.models.metrics import LanguageModelLoss, TokenMetric


class ToldTargets:
    """What language models with an adaptive vocabulary add to `tf_sparse_attention.models.Model`.

    Where the loss is `language_model_loss()` and all metrics are those of this library, `fit` and `evaluate` put the
    targets among the inputs, and the model answers with their nats. Any other loss or metric gets log-probabilities of
    the whole vocabulary.

    A subclass says by `can_be_told` whether that is cheaper.
    """

    can_be_told = False
    _nats_suffice = False

    def compile(self, optimizer="rmsprop", loss=None, loss_weights=None, metrics=None, weighted_metrics=None, **kwargs):
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)
        asked = [metric for metric in keras.tree.flatten([metrics, weighted_metrics]) if metric is not None]
        self._nats_suffice = isinstance(loss, LanguageModelLoss) and all(isinstance(one, TokenMetric) for one in asked)

    def compile_from_config(self, config):
        # Keras leaves this to classes that have a `compile` of their own.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def train_step(self, *state_and_data):
        return super().train_step(*self._told(*state_and_data))

    def test_step(self, *state_and_data):
        return super().test_step(*self._told(*state_and_data))

    def _told(self, *state_and_data):
        """Returns the arguments of a step with the targets of its data, the last one, among the inputs."""
        *state, data = state_and_data
        if not (self.can_be_told and self._nats_suffice):
            return state_and_data
        inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        return *state, ({**inputs, "targets": targets}, targets, weights)


def without_targets(inputs):
    """Returns the inputs of a language model without the targets that may be among them, and these or None."""
    if not isinstance(inputs, dict) or "targets" not in inputs:
        return inputs, None
    return {name: value for name, value in inputs.items() if name != "targets"}, inputs["targets"]
