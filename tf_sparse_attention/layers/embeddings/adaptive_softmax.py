"""Adaptive softmax: probabilities of words of which the rarer ones cost less."""

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
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class AdaptiveSoftmax(keras.layers.Layer):
    """Log-probabilities of words in clusters by frequency, of which each has smaller vectors than the one before.

    The head is a softmax over the frequent words and one logit for each rare cluster; a rare cluster has a softmax of
    its own: log p(w) = log p_head(cluster) + log p_cluster(w). The logit of a word of cluster i is e_w . (P_i x) + b_w.
    Source: Grave et al. 2017, "Efficient softmax approximation for GPUs", with the sizes and the tied weights of
    Baevski and Auli 2019, "Adaptive Input Representations for Neural Language Modeling", section 3.

    `loss` reads a rare cluster for those positions alone whose word is in it (up to a factor of two, since a compiled
    program has fixed shapes), and `predict_words` for those alone where it can hold the most likely word. A call gives
    all log-probabilities, O(T V).

    Args:
        vocabulary_size: V, number of words, the most frequent first. None with `embedding`, as are `cutoffs` and
            `div_value`.
        cutoffs: the first id of each cluster after the first, rising, between 1 and V - 1.
        div_value: factor from the size of the vectors of a cluster to that of the next. Default 4.
        embedding: an `AdaptiveEmbedding` whose tables and projections are used: tied weights. The logits of the
            clusters and the biases are the layer's own. `keras.models.clone_model` gives the copy an embedding of its
            own, as it knows nothing of layers inside layers.
        seed: integer for the initial values.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (..., D).

    Returns:
        Float32 (..., V) (float64 for a float64 layer), log-probabilities, which serve as logits too.

    Raises:
        ValueError: for a wrong argument, and for inputs of another size than a tied embedding has.

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
            self.vocabulary_size: int = vocabulary_size  # type: ignore[assignment]  # checked to be one
            self.cutoffs: tuple[int, ...] = checks.checked_counts("cutoffs", cutoffs, minimum=0)
            self.div_value = 4 if div_value is None else div_value
        else:
            self.vocabulary_size = embedding.vocabulary_size
            self.cutoffs, self.div_value = embedding.cutoffs, embedding.div_value
        self.seed = seed

    def build(self, inputs_shape: Shape) -> None:
        size: Any = inputs_shape[-1]  # always known
        if self.embedding is None:
            check_clusters(self.vocabulary_size, size, self.cutoffs, self.div_value)
            self._tables, self._projections = add_clusters(self, self.vocabulary_size, size)
        elif self.embedding.hidden_dim != size:
            raise ValueError(
                "`inputs` must have as many features as the tied embedding. "
                f"Received: shape {tuple(inputs_shape)}, hidden_dim={self.embedding.hidden_dim}."
            )
        starts = [0, *self.cutoffs, self.vocabulary_size]
        self._biases = [
            self.add_weight(name=f"bias_{index}", shape=(starts[index + 1] - starts[index],), initializer="zeros")
            for index in range(len(starts) - 1)
        ]
        if self.cutoffs:
            draw = keras.initializers.GlorotUniform(seed=self.seed)
            self._gate = [
                self.add_weight(name="gate_kernel", shape=(size, len(self.cutoffs)), initializer=draw),
                self.add_weight(name="gate_bias", shape=(len(self.cutoffs),), initializer="zeros"),
            ]

    def _weights(self):
        """Return the clusters and the gate as `ops.word_clusters` takes them, in the compute dtype."""
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
        """Return -log p of given words.

        Args:
            inputs: float (..., D).
            words: int (...), ids from 0 to V - 1.

        Returns:
            Float32 (...), nats (float64 for a float64 layer); NaN for an id that is no word.
        """
        words = ops.convert_to_tensor(words)
        checks.check_static("words", words.shape, tuple((size,) for size in inputs.shape[:-1]))
        rows = self._rows(inputs)
        nats = word_loss(rows, ops.reshape(ops.cast(words, "int32"), (-1,)), *self._weights())
        return ops.reshape(nats, shape(inputs)[:-1])

    def predict_words(self, inputs: Tensor) -> Tensor:
        """Return the most likely word of all, exactly: float (..., D) to int32 (...)."""
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
            raise ValueError("`cutoffs` must be given where `embedding` is not. Received: cutoffs=None.")
    elif not isinstance(embedding, AdaptiveEmbedding):
        raise ValueError(f"`embedding` must be an `AdaptiveEmbedding` or None. Received: embedding={embedding!r}.")
    elif named:
        raise ValueError(
            f"`{named[0]}` must be None where `embedding` says it. Received: {named[0]}={given[named[0]]!r}."
        )
