"""Adaptive input embedding and adaptive softmax, with smaller vectors for rare words."""

import itertools
from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.adaptive_vocabulary import (
    Cluster,
    Gate,
    embed_words,
    most_likely_word,
    word_log_probabilities,
    word_loss,
)
from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class AdaptiveEmbedding(keras.layers.Layer):
    """Adaptive input embedding: words are clustered by frequency, and clusters of rarer words have smaller vectors.

    A word w of cluster i is embedded as sqrt(D) P_i^T e_w. The vector e_w of word w has size D // div_value**i, and P_i
    projects it to D channels. The first cluster has a projection, too. Word ids are sorted by frequency, most frequent
    first. Cost O(T D (D + D / div_value + ...)) in addition to the look-up. Initial vectors have variance 1 / (vector
    size) and initial projections have variance 1 / D, so the output has variance 1. Source: Baevski and Auli 2019,
    "Adaptive Input Representations for Neural Language Modeling", section 3, as used by the word-level models of
    Sukhbaatar et al. 2019.

    Args:
        vocabulary_size: V, number of words.
        hidden_dim: D, channels of the output.
        cutoffs: first word id of each cluster except the first cluster, increasing, from 1 to V - 1. Empty: one
            cluster.
        div_value: ratio of the vector sizes of consecutive clusters. Default 4.
        seed: integer seed of the initial values.
        mask_zero: whether id 0 is padding, to be masked by later layers. Default False.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: int (B, T), word ids from 0 to V - 1. Invalid ids give NaN.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: if an argument is invalid, or if the vectors of the last cluster would have size 0.

    Example:
        >>> embedding = AdaptiveEmbedding(vocabulary_size=10_000, hidden_dim=64, cutoffs=(1000, 4000))
        >>> tuple(embedding(np.array([[0, 1000, 9999]])).shape)
        (1, 3, 64)
        >>> embedding.sizes
        [64, 16, 4]
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        cutoffs: Sequence[int],
        div_value: int = 4,
        seed: int | None = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # no autocast: half precision would round ids that are floats
        _check_clusters(vocabulary_size, hidden_dim, cutoffs, div_value)
        checks.check_optional_count("seed", seed, minimum=0)
        checks.check_switch("mask_zero", mask_zero)
        self.supports_masking = mask_zero
        self.mask_zero = mask_zero
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.cutoffs = tuple(cutoffs)
        self.div_value = div_value
        self.seed = seed
        self.build(None)

    @property
    def sizes(self) -> list[int]:
        """Vector size of each cluster."""
        return [self.hidden_dim // self.div_value**index for index in range(len(self.cutoffs) + 1)]

    def build(self, inputs_shape: Shape | None) -> None:
        if self.built:  # type: ignore[has-type]  # set by the base class
            return
        self._tables, self._projections = _add_clusters(self, self.vocabulary_size, self.hidden_dim)
        self.built = True

    def clusters(self) -> list[Cluster]:
        """Return the weights of each cluster in the compute dtype."""
        pairs = zip(self._tables, self._projections, strict=True)
        return [Cluster(*(ops.cast(weight, self.compute_dtype) for weight in pair)) for pair in pairs]

    def call(self, inputs: Tensor) -> Tensor:
        if keras.backend.standardize_dtype(inputs.dtype) not in ("int32", "int64"):
            inputs = ops.cast(inputs, "int32")
        return embed_words(inputs, self.clusters())

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return (*inputs_shape, self.hidden_dim)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def get_config(self) -> Config:
        names = ("vocabulary_size", "hidden_dim", "cutoffs", "div_value", "seed", "mask_zero")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _check_clusters(vocabulary_size: int, hidden_dim: int, cutoffs: Sequence[int], div_value: int) -> None:
    checks.check_count("vocabulary_size", vocabulary_size)
    checks.check_count("hidden_dim", hidden_dim)
    checks.check_count("div_value", div_value)
    starts = [0, *checks.checked_counts("cutoffs", cutoffs, minimum=0), vocabulary_size]
    if any(start >= stop for start, stop in itertools.pairwise(starts)):
        raise ValueError(
            "`cutoffs` must increase and be between 1 and `vocabulary_size` - 1. "
            f"Received: cutoffs={tuple(cutoffs)}, vocabulary_size={vocabulary_size}."
        )
    if hidden_dim < div_value ** len(starts[1:-1]):
        raise ValueError(
            "`div_value` must be small enough for vectors of positive size in the last cluster. "
            f"Received: hidden_dim={hidden_dim}, div_value={div_value}, {len(starts) - 1} clusters."
        )


def _add_clusters(layer, vocabulary_size, hidden_dim):
    """Create the tables and the projections of the clusters of a layer, as two lists of variables."""

    def make(name, sizes, fan, number):
        normal = keras.initializers.RandomNormal(stddev=fan**-0.5, seed=derived_seed(layer.seed, number))
        return layer.add_weight(name=name, shape=sizes, initializer=normal)

    starts = [0, *layer.cutoffs, vocabulary_size]
    tables, projections = [], []
    for index, (start, stop) in enumerate(itertools.pairwise(starts)):
        size = hidden_dim // layer.div_value**index
        tables.append(make(f"embeddings_{index}", (stop - start, size), size, 2 * index))
        projections.append(make(f"projection_{index}", (size, hidden_dim), hidden_dim, 2 * index + 1))
    return tables, projections


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class AdaptiveSoftmax(keras.layers.Layer):
    """Adaptive softmax: log-probabilities of words that are clustered by frequency.

    Clusters of rarer words have smaller vectors. The head is a softmax over the frequent words and one logit per rare
    cluster. Each rare cluster has its own softmax: log p(w) = log p_head(cluster) + log p_cluster(w). The logit of a
    word w of cluster i is e_w . (P_i x) + b_w. Source: Grave et al. 2017, "Efficient softmax approximation for GPUs",
    with the sizes and the tied weights of Baevski and Auli 2019, "Adaptive Input Representations for Neural Language
    Modeling", section 3.

    `loss` evaluates the softmax of a rare cluster only for positions with a word of this cluster. In compiled programs,
    `loss` pads these positions to one of a few fixed sizes. The size is at most about twice the number of these
    positions, or 1/64 of all positions if that is larger. `predict_words` evaluates the softmax of a rare cluster only
    where the cluster may contain the most likely word. A call returns all log-probabilities, in O(T V).

    Args:
        vocabulary_size: V, number of words, most frequent first. None with `embedding`.
        cutoffs: first word id of each cluster except the first cluster, increasing, from 1 to V - 1. None with
            `embedding`.
        div_value: ratio of the vector sizes of consecutive clusters. Default 4. None with `embedding`.
        embedding: an `AdaptiveEmbedding` whose tables and projections are shared (tied weights). Cluster logits and
            biases are not shared. `keras.models.clone_model` does not preserve the sharing, because it does not track
            nested layers.
        seed: integer seed of the initial values.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (..., D).

    Returns:
        Float32 (..., V), or float64 in a float64 layer: log-probabilities, which are also valid logits.

    Raises:
        ValueError: if an argument is invalid, or if the inputs do not have the size of a tied embedding.

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
        sizes = {"vocabulary_size": vocabulary_size, "cutoffs": cutoffs, "div_value": div_value}
        _check_arguments(embedding, sizes)
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
            _check_clusters(self.vocabulary_size, size, self.cutoffs, self.div_value)
            self._tables, self._projections = _add_clusters(self, self.vocabulary_size, size)
        elif self.embedding.hidden_dim != size:
            raise ValueError(
                "`inputs` must have the number of features of the tied embedding. "
                f"Received: shape {tuple(inputs_shape)}, hidden_dim={self.embedding.hidden_dim}."
            )
        starts = [0, *self.cutoffs, self.vocabulary_size]
        self._biases = [
            self.add_weight(name=f"bias_{index}", shape=(stop - start,), initializer="zeros")
            for index, (start, stop) in enumerate(itertools.pairwise(starts))
        ]
        if self.cutoffs:
            initializer = keras.initializers.GlorotUniform(seed=self.seed)
            self._gate = [
                self.add_weight(name="gate_kernel", shape=(size, len(self.cutoffs)), initializer=initializer),
                self.add_weight(name="gate_bias", shape=(len(self.cutoffs),), initializer="zeros"),
            ]

    def _weights(self):
        """Return the `Cluster` weights and the `Gate` in the compute dtype."""
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
        """Compute the negative log-likelihood of words.

        Args:
            inputs: float (..., D).
            words: int (...), word ids from 0 to V - 1. Invalid ids give NaN.

        Returns:
            Float32 (...), or float64 in a float64 layer, in nats per word.
        """
        words = ops.convert_to_tensor(words)
        checks.check_static("words", words.shape, tuple((size,) for size in inputs.shape[:-1]))
        rows = self._rows(inputs)
        nats = word_loss(rows, ops.reshape(ops.cast(words, "int32"), (-1,)), *self._weights())
        return ops.reshape(nats, shape(inputs)[:-1])

    def predict_words(self, inputs: Tensor) -> Tensor:
        """Return the ids of the most likely words, int32 (...), for inputs (..., D)."""
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


def _check_arguments(embedding, sizes):
    superfluous = [name for name, value in sizes.items() if value is not None]
    if embedding is None:
        checks.check_count("vocabulary_size", sizes["vocabulary_size"])
        if sizes["cutoffs"] is None:
            raise ValueError("`cutoffs` must be given if `embedding` is None. Received: cutoffs=None.")
    elif not isinstance(embedding, AdaptiveEmbedding):
        raise ValueError(f"`embedding` must be an `AdaptiveEmbedding` or None. Received: embedding={embedding!r}.")
    elif superfluous:
        name = superfluous[0]
        raise ValueError(f"`{name}` must be None if `embedding` is given. Received: {name}={sizes[name]!r}.")
