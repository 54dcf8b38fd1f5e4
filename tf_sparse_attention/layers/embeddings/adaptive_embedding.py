"""Adaptive input: an embedding with smaller vectors for rare words."""

import itertools
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.adaptive_vocabulary import Cluster, embed_words
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class AdaptiveEmbedding(keras.layers.Layer):
    """Embedding of words in clusters by frequency, with smaller vectors for rarer clusters.

    A word w of cluster i is embedded as sqrt(D) P_i^T e_w. Its vector e_w has size D // div_value**i, and P_i is a
    projection to D channels (for the first cluster too). Ids are sorted by frequency, the most frequent word first.
    Cost O(T D (D + D / div_value + ...)) in addition to the look-up. Source: Baevski and Auli 2019, "Adaptive Input
    Representations for Neural Language Modeling", section 3, as used by the word models of Sukhbaatar et al. 2019.

    Initial vectors have variance 1 / D, so the output has variance 1.

    Args:
        vocabulary_size: V, number of words.
        hidden_dim: D, channels of the output.
        cutoffs: first id of each cluster except the first, increasing, from 1 to V - 1. Empty: one cluster.
        div_value: ratio of the vector sizes of consecutive clusters. Default 4.
        seed: integer for the initial values.
        mask_zero: whether id 0 is padding, for which later layers receive a mask. Default False.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: int (B, T), ids from 0 to V - 1. Invalid ids give NaN.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: If an argument is invalid, or the vectors of the last cluster would have size 0.

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
        super().__init__(autocast=False, **kwargs)  # ids given as floats would be rounded to half precision
        check_clusters(vocabulary_size, hidden_dim, cutoffs, div_value)
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
        self._tables, self._projections = add_clusters(self, self.vocabulary_size, self.hidden_dim)
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


def check_clusters(vocabulary_size: int, hidden_dim: int, cutoffs: Sequence[int], div_value: int) -> None:
    """Raise a `ValueError` unless every cluster has words and vectors of positive size."""
    checks.check_count("vocabulary_size", vocabulary_size)
    checks.check_count("hidden_dim", hidden_dim)
    checks.check_count("div_value", div_value)
    starts = [0, *checks.checked_counts("cutoffs", cutoffs, minimum=0), vocabulary_size]
    if any(start >= stop for start, stop in itertools.pairwise(starts)):
        raise ValueError(
            "`cutoffs` must increase, from at least 1 to less than `vocabulary_size`. "
            f"Received: cutoffs={tuple(cutoffs)}, vocabulary_size={vocabulary_size}."
        )
    if hidden_dim < div_value ** len(starts[1:-1]):
        raise ValueError(
            "`div_value` must give the vectors of the last cluster a positive size. "
            f"Received: hidden_dim={hidden_dim}, div_value={div_value}, {len(starts) - 1} clusters."
        )


def add_clusters(
    layer: keras.layers.Layer, vocabulary_size: int, hidden_dim: int
) -> tuple[list[keras.Variable], list[keras.Variable]]:
    """Create the tables and the projections of the clusters of a layer; return them as two lists."""
    starts = [0, *layer.cutoffs, vocabulary_size]
    tables, projections = [], []
    for index in range(len(starts) - 1):
        size = hidden_dim // layer.div_value**index
        shape = (starts[index + 1] - starts[index], size)
        tables.append(_add_normal(layer, f"embeddings_{index}", shape, size, 2 * index))
        projections.append(_add_normal(layer, f"projection_{index}", (size, hidden_dim), hidden_dim, 2 * index + 1))
    return tables, projections


def _add_normal(layer, name, shape, size, number):
    normal = keras.initializers.RandomNormal(stddev=size**-0.5, seed=derived_seed(layer.seed, number))
    return layer.add_weight(name=name, shape=shape, initializer=normal)
