"""Clustered attention: dense attention approximated by clusters of queries."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads
from tf_sparse_attention.layers.parts.variables import drawn_seed, random_directions
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.clustered_attention import clustered_attention, improved_clustered_attention
from tf_sparse_attention.ops.hashing import evenly_spaced_tokens, hamming_clusters, hash_bits
from tf_sparse_attention.ops.masks import TokenMasks, dense_mask, merge
from tf_sparse_attention.ops.positions import rotate_query_and_key
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.patterns.selection import Selector
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class ClusteredAttention(AttentionLayer):
    """Clustered attention: dense attention approximated by clusters of queries, in O((T + S) C) for C clusters.

    Queries are clustered by k-means on their hash bits. The mean query of each cluster attends to all keys. All queries
    of the cluster get this output. With `top_k` ("improved" clustered attention), every query computes its own weights
    for the k highest-scoring keys of its cluster. The layer has the same weights as `keras.layers.MultiHeadAttention`,
    so `copy_projections` can copy them. The layer has no pattern: `pattern` is None. Source: Vyas et al. 2020, "Fast
    Transformers with Clustered Attention".

    The hash directions are random and saved with the layer. K-means starts from evenly spaced tokens, so the result of
    a row depends only on its own tokens. The assignment to clusters has no gradient. Training differs from evaluation
    only in dropout.

    The layer is not causal, because the mean of a cluster depends on later queries. Causal masks, `segment_ids` and an
    `attention_mask` that differs between queries raise an error. Padding is masked and belongs to no cluster.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_clusters: C, number of clusters. Default 100.
        num_bits: number of hash bits. Default 32.
        num_iterations: number of k-means iterations. Default 10.
        top_k: k, keys per cluster for which each query computes its own weights, 32 in the paper. None: all queries of
            a cluster have the same weights.
        **kwargs: the other arguments of `AttentionLayer`. `position` must be None or "rotary", because other position
            encodings need a bias per pair of query and key. `seed` also determines the hash directions.

    Raises:
        ValueError: if an argument is invalid, for a causal mask, for `segment_ids`, or for a mask that differs between
            queries.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = ClusteredAttention(num_heads=4, key_dim=16, num_clusters=25, top_k=32)
        >>> tuple(layer(x).shape)
        (2, 1000, 64)
    """

    pattern = None  # type: ignore[assignment]  # every query attends to all keys
    cross_cache_unsupported_reason = "the queries of a cluster share their mean"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        num_clusters: int = 100,
        num_bits: int = 32,
        num_iterations: int = 10,
        top_k: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        for name, value in (("clusters", num_clusters), ("bits", num_bits), ("iterations", num_iterations)):
            checks.check_count(f"num_{name}", value)
        checks.check_optional_count("top_k", top_k)
        if num_bits * num_clusters >= 2**23:
            raise ValueError(
                "`num_bits` times `num_clusters` must be below 2^23. "
                f"Received: num_bits={num_bits}, num_clusters={num_clusters}."
            )
        if self.position not in (None, "rotary"):
            raise ValueError(f"`position` must be None or 'rotary'. Received: position={self.position!r}.")
        unsupported = [name for name in ("use_sink", "logit_soft_cap") if getattr(self.head_settings, name)]
        if unsupported:
            raise ValueError(
                f"`{unsupported[0]}` must not be set: the queries of a cluster share one softmax. "
                f"Received: {unsupported}."
            )
        self.num_clusters = num_clusters
        self.num_bits = num_bits
        self.num_iterations = num_iterations
        self.top_k = top_k
        self.seed = drawn_seed(self.seed)

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        self.planes = random_directions(self, "planes", (self.num_bits, self.key_dim + 1))

    def make_selectors(self) -> list[Selector | None]:
        return []

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        self._check_masks(masks)
        query, key, value = heads
        query, key = rotate_query_and_key(self.position_encoding, query, key)
        key_mask = None if masks.key_mask is None else masks.key_mask[:, None, None]
        inputs = query * self.score_scale, key, value, self._assign_clusters(query, masks.query_mask), self.num_clusters
        options: dict[str, Any] = {
            "key_mask": merge(key_mask, masks.attention_mask),
            "dropout": Dropout.for_call(self.dropout, self._seeds, training),
            "return_weights": return_weights,
        }
        if self.top_k is None:
            attended = clustered_attention(*inputs, **options)
        else:
            attended = improved_clustered_attention(*inputs, self.top_k, **options)
        return attended.output, attended.weights

    def _assign_clusters(self, query: Tensor, query_mask: Tensor | None) -> Tensor:
        """Assign each query to a cluster, int32 (B, N, T)."""
        batch, _, length, _ = shape(query)
        exists = ops.ones((batch, length), "bool") if query_mask is None else query_mask
        starts = evenly_spaced_tokens(exists, self.num_clusters, length)
        bits = hash_bits(query, ops.convert_to_tensor(self.planes))
        return hamming_clusters(bits, self.num_clusters, self.num_iterations, starts, query_mask)

    def _check_masks(self, masks: TokenMasks) -> None:
        if masks.query_segments is not None:
            raise ValueError(
                "`segment_ids` must be None: clusters mix queries of several documents. Received: segment_ids. "
                "Put each document in a separate row."
            )
        if masks.attention_mask is not None and masks.attention_mask.shape[2] != 1:
            raise ValueError(
                "`attention_mask` must have a query axis of size 1: the queries of a cluster attend to the same keys. "
                f"Received: attention_mask of shape {tuple(masks.attention_mask.shape)}."
            )

    def dense_mask(self, heads: ProjectedHeads, masks: TokenMasks, causal: bool) -> Tensor:
        self._check_masks(masks)
        return dense_mask(ops.ones((1, 1, shape(heads[0])[2], shape(heads[1])[2]), "bool"), masks)

    def get_config(self) -> Config:
        names = ("num_clusters", "num_bits", "num_iterations", "top_k")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
