"""Speech recognizer: labels, such as phonemes or characters, for the frames of a recording."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.generation.ctc import ctc_beam_search, ctc_greedy
from tf_sparse_attention.layers.frame_subsampling import FrameSubsampling
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.models.backbone import Backbone
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.ops.ctc import force_blanks
from tf_sparse_attention.types import Config, Tensor

INPUTS = ("features", "padding_mask")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SpeechRecognizer(Model):
    """Speech recognizer that is trained with `CTCLoss`: log-probabilities of labels and of the blank for each frame.

    Features are normalized and subsampled (`FrameSubsampling`). A bidirectional encoder with any attention patterns
    reads the recording, and a dense layer computes the label scores of each frame (Graves et al. 2006). Vyas et al.
    2020, section 4.1, use this model with clustered attention.

    Args:
        encoder: a `Backbone` without a vocabulary and with `causal=False`. Positions must come from its `embedding` or
            its attention layers.
        vocabulary_size: V, number of labels, with ids 1 to V. Id 0 is the blank.
        num_features: F, features per frame. Default: number of features of the encoder. If `subsampling` is 1, no other
            value is allowed.
        subsampling: subsampling factor: 1, 2 or 4. Default 1.
        feature_mean: F numbers, subtracted from the features. None: zeros.
        feature_std: F positive divisors of the centered features. None: ones.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (B, T, F), or a dictionary of "features" and optionally "padding_mask", bool (B, T), False for
            padding on the right.
        training: whether to apply dropout and update centroids.

    Returns:
        float32 (B, ceil(T / subsampling), V + 1), log-probabilities, blank first. The blank has probability 1 in padded
        frames, so neither the loss nor decoding needs the mask.

    Raises:
        ValueError: if an argument is invalid, or `inputs` has missing or unknown keys.

    Example:
        >>> heads = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 16, "position": "rotary"}
        >>> encoder = Backbone(None, 2, 16, [heads], intermediate_dim=32, causal=False)
        >>> model = SpeechRecognizer(encoder, vocabulary_size=59, num_features=40, subsampling=4)
        >>> tuple(model(keras.random.normal((2, 100, 40))).shape)
        (2, 25, 60)
    """

    _model_arguments = ("encoder",)

    def __init__(
        self,
        encoder: Backbone,
        vocabulary_size: int,
        num_features: int | None = None,
        subsampling: int = 1,
        feature_mean: Sequence[float] | None = None,
        feature_std: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # features are normalized in full precision
        checks.check_count("vocabulary_size", vocabulary_size)
        checks.check_optional_count("num_features", num_features)
        _check_encoder(encoder, num_features, subsampling)
        self.encoder = encoder
        self.vocabulary_size = vocabulary_size
        self.num_features = encoder.embedding_dim if num_features is None else num_features
        self.feature_mean = _checked_statistics("feature_mean", feature_mean, self.num_features)
        self.feature_std = _checked_statistics("feature_std", feature_std, self.num_features)
        if self.feature_std is not None and min(self.feature_std) <= 0:
            raise ValueError(f"`feature_std` must be positive numbers. Received: a value of {min(self.feature_std)}.")
        self.frame_subsampling = FrameSubsampling(
            subsampling, encoder.embedding_dim, dtype=self.dtype_policy, name="frame_subsampling"
        )
        self.to_labels = keras.layers.Dense(
            vocabulary_size + 1, dtype=sublayer_policy(self, "to_labels"), name="to_labels"
        )
        self.supports_masking = True
        self.build()

    @property
    def backbone(self) -> Backbone:
        """The encoder."""
        return self.encoder

    @property
    def subsampling(self) -> int:
        """Subsampling factor."""
        return self.frame_subsampling.factor

    def build(self, input_shape: Any = None) -> None:
        self.frame_subsampling.build((None, None, self.num_features))
        self.to_labels.build((None, None, self.encoder.hidden_dim))
        self.built = True

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        features, mask = _unpack(inputs, self.num_features)
        x = self.frame_subsampling(self._normalized(features), padding_mask=mask)
        encoder_inputs = {"features": x}
        if mask is not None:
            mask = encoder_inputs["padding_mask"] = mask[:, :: self.subsampling]
        x = self.to_labels(self.encoder(encoder_inputs, training=training))
        log_probs = ops.log_softmax(ops.cast(x, "float32"), axis=-1)
        return log_probs if mask is None else force_blanks(log_probs, mask)

    def _normalized(self, features):
        x = ops.cast(features, "float32")
        if self.feature_mean is not None:
            x = x - np.array(self.feature_mean, "float32")
        if self.feature_std is not None:
            x = x / np.array(self.feature_std, "float32")
        return ops.cast(x, self.compute_dtype)

    def transcribe(self, features: Sequence[Any], num_beams: int | None = None) -> list[np.ndarray]:
        """Transcribe recordings, one at a time and without compilation.

        For many recordings, compute log-probabilities in batches with `predict`.

        Args:
            features: float arrays (T, F) with T > 0, one per recording.
            num_beams: beam width of `ctc_beam_search`. None: `ctc_greedy`.

        Returns:
            List of int32 arrays (U,), ids from 1 to V.

        Raises:
            ValueError: if a recording is empty or has an invalid shape.
        """
        results = []
        for recording in features:
            recording = np.asarray(recording, "float32")
            if recording.ndim != 2 or not recording.size or recording.shape[1] != self.num_features:
                raise ValueError(
                    f"`features` must be arrays (frames, {self.num_features}) that are not empty. "
                    f"Received: shape {recording.shape}."
                )
            log_probs = ops.convert_to_numpy(self(recording[None], training=False))
            if num_beams is None:
                (ids,) = ops.convert_to_numpy(ctc_greedy(log_probs))
                results.append(ids[ids > 0])
            else:
                results.append(ctc_beam_search(log_probs[0], num_beams)[0].ids)
        return results

    def with_attention(self, attention: Sequence[Any]) -> "SpeechRecognizer":
        """Return a copy with the same weights and different attention.

        Clustered attention, for example, can approximate dense attention (Vyas et al. 2020, table 1).

        Args:
            attention: as in `Backbone`, with the same names and shapes of weights.

        Raises:
            ValueError: if the names or shapes of weights differ.
        """
        config = self.get_config()
        settings = {**self.encoder.get_config(), "attention": attention}
        other = type(self)(**{**config, "encoder": Backbone.from_config(settings)})
        old, new = ([(each.name, tuple(each.shape)) for each in model.trainable_weights] for model in (self, other))
        if old != new:
            differing = sorted(set(new) ^ set(old)) or "another order"
            raise ValueError(f"`attention` must have the weights of the model. Received: differences, {differing}.")
        for target, source in zip(other.trainable_weights, self.trainable_weights, strict=True):
            target.assign(source)
        return other

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, length = (input_shape["features"] if isinstance(input_shape, dict) else input_shape)[:2]
        length = None if length is None else -(-length // self.subsampling)
        return (batch, length, self.vocabulary_size + 1)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        return None

    def get_config(self) -> Config:
        return self.base_config("vocabulary_size", "num_features", "subsampling", "feature_mean", "feature_std")


def _check_encoder(encoder, num_features, subsampling):
    if not isinstance(encoder, Backbone) or encoder.causal or encoder.vocabulary_size is not None:
        raise ValueError(
            f"`encoder` must be a `Backbone` with causal=False and vocabulary_size=None. Received: encoder={encoder!r}."
        )
    if subsampling == 1 and num_features not in (None, encoder.embedding_dim):
        raise ValueError(
            "`num_features` must be the number of features of the encoder if `subsampling` is 1. "
            f"Received: num_features={num_features}, with {encoder.embedding_dim} features of the encoder."
        )


def _checked_statistics(name, values, count):
    """Return a list of numbers, one per feature, or None."""
    if values is None:
        return None
    values = [float(value) for value in np.asarray(values, "float64").reshape(-1)]
    if len(values) != count or not np.isfinite(values).all():
        raise ValueError(f"`{name}` must be {count} finite numbers, one per feature. Received: {len(values)}.")
    return values


def _unpack(inputs, num_features):
    """Return the features and the padding mask, which can be None."""
    if isinstance(inputs, dict) and (INPUTS[0] not in inputs or set(inputs) - set(INPUTS)):
        raise ValueError(
            f"`inputs` must have the key {INPUTS[0]!r} and may have {INPUTS[1]!r}. Received: keys {sorted(inputs)}."
        )
    features, mask = (inputs[INPUTS[0]], inputs.get(INPUTS[1])) if isinstance(inputs, dict) else (inputs, None)
    sizes = tuple(features.shape)
    if len(sizes) != 3 or sizes[2] != num_features:
        raise ValueError(f"`features` must have the shape (batch, frames, {num_features}). Received: shape {sizes}.")
    return features, None if mask is None else ops.cast(mask, "bool")
