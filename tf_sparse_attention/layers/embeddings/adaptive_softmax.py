"""Adaptive softmax: word probabilities at lower cost for rare words."""

from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.embeddings.adaptive_embedding import AdaptiveEmbedding, add_clusters, check_clusters
from tf_sparse_attention.ops.adaptive_vocabulary import (
    Cluster,
    Gate,
    most_likely_word,
    word_log_probabilities,
    word_loss,
)
from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class AdaptiveSoftmax(keras.layers.Layer):
    """Log-probabilities of words in clusters by frequency, with smaller vectors for rarer clusters.

    The head is a softmax over the frequent words and one logit per rare cluster. Each rare cluster has another softmax:
    log p(w) = log p_head(cluster) + log p_cluster(w). The logit of a word w of cluster i is e_w . (P_i x) + b_w.
    Source: Grave et al. 2017, "Efficient softmax approximation for GPUs", with the sizes and the tied weights of
    Baevski and Auli 2019, "Adaptive Input Representations for Neural Language Modeling", section 3.

    `loss` computes a rare cluster only for positions with a word in this cluster (up to a factor of two, since compiled
    programs have fixed shapes). `predict_words` computes it only where it may contain the most likely word. A call
    returns all log-probabilities, O(T V).

    Args:
        vocabulary_size: V, number of words, the most frequent first. None with `embedding`.
        cutoffs: first id of each cluster except the first, increasing, from 1 to V - 1. None with `embedding`.
        div_value: ratio of the vector sizes of consecutive clusters. Default 4. None with `embedding`.
        embedding: an `AdaptiveEmbedding` whose tables and projections are shared (tied weights). Cluster logits and
            biases are not shared. `keras.models.clone_model` does not preserve the sharing: it does not see layers
            inside of layers.
        seed: integer for the initial values.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (..., D).

    Returns:
        Float32 (..., V) (float64 for a float64 layer), log-probabilities, which are also valid logits.

    Raises:
        ValueError: If an argument is invalid, or the inputs do not have the size of a tied embedding.

    Example:
        >>> embedding = AdaptiveEmbedding(vocabulary_size=10_000, hidden_dim=64, cutoffs=(1000, 4000))
        >>> softmax = AdaptiveSoftmax(embedding=embedding)
        >>> words = np.array([[17, 2000, 9999]])
        >>> x = embedding(words)
        >>> tuple(softmax.loss(x, words).shape), tuple(softmax.predict_words(x).shape), tuple(softmax(x).shape)
        ((1, 3), (1, 3), (1, 3, 10000))
    """

    def __init__(
        self,
        vocabulary_size: int | None = None,
        cutoffs: Sequence[int] | None = None,
        div_value: int | None = None,
        embedding: AdaptiveEmbedding | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        checks.check_optional_count("seed", seed, minimum=0)
        given = {"vocabulary_size": vocabulary_size, "cutoffs": cutoffs, "div_value": div_value}
        _check_source(embedding, given)
        self.supports_masking = True
        self.embedding = embedding
        if embedding is None:
            self.vocabulary_size: int = vocabulary_size  # type: ignore[assignment]  # checked above
            self.cutoffs: tuple[int, ...] = checks.checked_counts("cutoffs", cutoffs, minimum=0)
            self.div_value = 4 if div_value is None else div_value
        else:
            self.vocabulary_size = embedding.vocabulary_size
            self.cutoffs, self.div_value = embedding.cutoffs, embedding.div_value
        self.seed = seed

    def build(self, inputs_shape: Shape) -> None:
        size: Any = inputs_shape[-1]  # never None
        if self.embedding is None:
            check_clusters(self.vocabulary_size, size, self.cutoffs, self.div_value)
            self._tables, self._projections = add_clusters(self, self.vocabulary_size, size)
        elif self.embedding.hidden_dim != size:
            raise ValueError(
                "`inputs` must have the number of features of the tied embedding. "
                f"Received: shape {tuple(inputs_shape)}, hidden_dim={self.embedding.hidden_dim}."
            )
        starts = [0, *self.cutoffs, self.vocabulary_size]
        self._biases = [
            self.add_weight(name=f"bias_{index}", shape=(starts[index + 1] - starts[index],), initializer="zeros")
            for index in range(len(starts) - 1)
        ]
        if self.cutoffs:
            initializer = keras.initializers.GlorotUniform(seed=self.seed)
            self._gate = [
                self.add_weight(name="gate_kernel", shape=(size, len(self.cutoffs)), initializer=initializer),
                self.add_weight(name="gate_bias", shape=(len(self.cutoffs),), initializer="zeros"),
            ]

    def _weights(self):
        """Return the weights of clusters and gate in the compute dtype."""
        if self.embedding is None:
            pairs = list(zip(self._tables, self._projections, strict=True))
        else:
            pairs = [(cluster.table, cluster.projection) for cluster in self.embedding.clusters()]
        clusters = [
            Cluster(*(ops.cast(weight, self.compute_dtype) for weight in (*pair, bias)))
            for pair, bias in zip(pairs, self._biases, strict=True)
        ]
        gate = Gate(*(ops.cast(weight, self.compute_dtype) for weight in self._gate)) if self.cutoffs else None
        return clusters, gate

    def call(self, inputs: Tensor) -> Tensor:
        return word_log_probabilities(inputs, *self._weights())

    def loss(self, inputs: Tensor, words: Tensor) -> Tensor:
        """Return -log p of words.

        Args:
            inputs: float (..., D).
            words: int (...), ids from 0 to V - 1.

        Returns:
            Float32 (...), nats (float64 for a float64 layer); NaN for an invalid id.
        """
        words = ops.convert_to_tensor(words)
        checks.check_static("words", words.shape, tuple((size,) for size in inputs.shape[:-1]))
        rows = self._rows(inputs)
        nats = word_loss(rows, ops.reshape(ops.cast(words, "int32"), (-1,)), *self._weights())
        return ops.reshape(nats, shape(inputs)[:-1])

    def predict_words(self, inputs: Tensor) -> Tensor:
        """Return the most likely word, exactly: float (..., D) to int32 (...)."""
        return ops.reshape(most_likely_word(self._rows(inputs), *self._weights()), shape(inputs)[:-1])

    def _rows(self, inputs):
        inputs = ops.cast(inputs, self.compute_dtype)
        if not self.built:
            self.build(inputs.shape)
        return ops.reshape(inputs, (-1, inputs.shape[-1]))

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=score_dtype(self.compute_dtype))

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return (*inputs_shape[:-1], self.vocabulary_size)

    def get_config(self) -> Config:
        config = {**super().get_config(), "seed": self.seed}
        if self.embedding is None:
            names = ("vocabulary_size", "cutoffs", "div_value")
            return {**config, **{name: getattr(self, name) for name in names}}
        return {**config, "embedding": keras.saving.serialize_keras_object(self.embedding)}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        if config.get("embedding") is not None:
            config = {**config, "embedding": keras.saving.deserialize_keras_object(config["embedding"])}
        return cls(**config)


def _check_source(embedding, given):
    named = [name for name, value in given.items() if value is not None]
    if embedding is None:
        checks.check_count("vocabulary_size", given["vocabulary_size"])
        if given["cutoffs"] is None:
            raise ValueError("`cutoffs` must be given if `embedding` is None. Received: cutoffs=None.")
    elif not isinstance(embedding, AdaptiveEmbedding):
        raise ValueError(f"`embedding` must be an `AdaptiveEmbedding` or None. Received: embedding={embedding!r}.")
    elif named:
        raise ValueError(
            f"`{named[0]}` must be None if `embedding` is given. Received: {named[0]}={given[named[0]]!r}."
        )
