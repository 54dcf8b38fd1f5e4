"""Routing attention: attention within k-means clusters of tokens."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads, head_plans
from tf_sparse_attention.layers.attention.sparse_attention import SparseAttention
from tf_sparse_attention.layers.parts.call_inputs import mask_of_tokens
from tf_sparse_attention.layers.parts.selectors import Centroids, for_leaf
from tf_sparse_attention.layers.parts.variables import random_directions
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.members import best_members, hash_scores, strided_members
from tf_sparse_attention.ops.shapes import fold_groups, shape
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster, MemberSelector
from tf_sparse_attention.patterns.engine.head_plans import AttentionOptions
from tf_sparse_attention.patterns.group_band import GroupSelector
from tf_sparse_attention.patterns.nearest import Nearest, RandomGroups
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.selection import Selector
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.patterns.top_keys import KeySelector, TopKeys
from tf_sparse_attention.types import Config, Tensor

OF_ALL_TOKENS = ("top_k", "strided", "hash")  # selections of queries and keys among the whole sequence
OF_ANY_LENGTHS = (*OF_ALL_TOKENS, "top_keys")
WITHOUT_CENTROIDS = ("hash", "random")
SELECTIONS = ("nearest", *OF_ANY_LENGTHS, "random")
DISTANCES = ("rank", "token")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class RoutingAttention(SparseAttention):
    """Routing attention: each query attends to keys of its k-means cluster, in O(T cluster_size).

    `SparseAttention` under a cluster pattern, with `normalize_queries_and_keys=True`. Queries and keys are
    layer-normalized without scale, x = LN(x W). Scores are LN(q) . LN(k), not divided by sqrt(key_dim). A token belongs
    to the cluster c of the largest x . mu_c. In training, centroids mu_c are exponential moving averages of their
    tokens, and `commitment_loss` mean((x - mu)^2) is added to the loss. Outside training they are constant. Source: Roy
    et al. 2021, "Efficient Content-Based Sparse Attention with Routing Transformers".

    `selection` determines the keys that a query attends to:

    - "nearest" (default): the last `cluster_size` keys of its cluster up to its position, itself included, and without
      a causal mask the `cluster_size` - 1 next keys, too. Causal by construction. Every token attends.
    - "top_keys": the `cluster_size` keys of the whole sequence closest to its centroid; of equal keys, the earlier. The
      result of a query depends on no other query. For encoders, and for cross-attention to a sequence of any length,
      with a cross-attention cache. Causal calls and `segment_ids` raise an error. Half the time of "nearest" with
      `share_qk=False`.
    - "top_k": each centroid selects the `cluster_size` closest tokens of the whole sequence. The output of a token is
      the mean over the clusters that selected it, and zeros if none did. About (1 - 1/K)^K of the tokens, a third, get
      zeros if T = K `cluster_size`; `tsa.analysis.health` counts them. Never causal. Rounding selects among equal
      tokens, so results may depend on the batch size.
    - "strided": like "top_k", but each centroid selects every (T / `cluster_size`)-th token by descending score.
      Unrelated to `StridedAttention`. "hash": like "top_k", but each hash bucket selects its first `cluster_size`
      tokens. Both are options of the published code and never causal.
    - "random": like "nearest", in clusters that depend only on the position. An ablation of the paper.

    Note: differs from the paper, whose only selection is "top_k". It leaks later tokens into earlier outputs, and other
    queries into the output of a query. "top_keys" is a contribution of this library.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_clusters: K, centroids per head; a power of two for "hash".
        cluster_size: w, keys of its cluster that a query attends to.
        selection: "nearest", "top_keys", "top_k", "strided", "hash" or "random". Default "nearest".
        share_qk: whether queries are used as keys, so that there is no key projection and `value` must be None. Default
            True, as in the paper's causal models. With False, "nearest" takes 3 to 4 times as long. Must be False with
            "top_keys".
        mask_self: whether a token attends to itself only if it attends to no other token. None (default): True where
            queries are used as keys with "nearest" and "random", because LN(q) . LN(q) = H exceeds every other score.
        use_successor_values: whether a query reads successor values: for key j the value of token j + 1. The query
            attends to the last `cluster_size` earlier tokens of its cluster and never to itself, like an induction head
            (`tsa.patterns.Successors`). For causal self-attention with "nearest" or "random". Default False.
        distance: distance of position "relative". "rank" (default): between ranks in the cluster, as published; with
            "nearest" and "top_keys", a query that is not a key has the rank of the last key up to its position.
            "token": between positions, on the scores only, at about twice the cost of the layer.
        ema_decay: decay of the moving averages, in [0, 1). Default 0.999.
        commitment_loss: factor of the commitment loss. Default 1e-4. 0: none.
        revive_after: training steps without a token after which a centroid moves to the largest cluster. Default 100.
            0: never.
        reproduce_reference: whether to reproduce the published code: means divided by the count + 0.01, the commitment
            of shared queries counted twice, and causality by rank in the cluster. Default False.
        **kwargs: the other arguments of `AttentionLayer`.

    With `share_qk`, a token masked by `key_mask` or `value_mask` is in no cluster, and as a query attends to nothing.

    Raises:
        ValueError: if an argument is invalid, if `value` is given with `share_qk`, if sequences have different lengths
            with "nearest" or "random", or if "top_keys" gets a causal mask or `segment_ids`.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = RoutingAttention(num_heads=2, key_dim=32, num_clusters=8, cluster_size=128)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    seed: int  # drawn if None was given

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        num_clusters: int,
        cluster_size: int,
        *,
        selection: str = "nearest",
        share_qk: bool = True,
        mask_self: bool | None = None,
        use_successor_values: bool = False,
        distance: str = "rank",
        ema_decay: float = Nearest.ema_decay,
        commitment_loss: float = Nearest.commitment_loss,
        revive_after: int = Nearest.revive_after,
        reproduce_reference: bool = False,
        **kwargs: Any,
    ) -> None:
        arguments = dict(locals())
        _check_arguments(arguments)
        super().__init__(
            num_heads,
            key_dim,
            _pattern_of(num_clusters, cluster_size, selection, use_successor_values, share_qk, reproduce_reference),
            share_qk=share_qk,
            mask_self=mask_self,
            normalize_queries_and_keys=True,
            **kwargs,
        )
        check_sink(self.head_settings.use_sink, selection)
        self.num_clusters = num_clusters
        self.cluster_size = cluster_size
        self.selection = selection
        self.use_successor_values = use_successor_values
        self.distance = distance
        self.has_relative_values = distance == "rank"
        self.ema_decay = ema_decay
        self.commitment_loss = commitment_loss
        self.revive_after = revive_after
        self.reproduce_reference = reproduce_reference

    @property
    def centroids(self) -> keras.Variable | None:
        """The centroids, float32 (N, K, H). None with "hash" and "random"."""
        return None if self._clusters is None else self._clusters.centroids

    def start_from_data(self, inputs: Tensor, mask: Tensor | None = None, seed: int | None = None) -> None:
        """Move the centroids to randomly drawn tokens, which shortens the start of training.

        Args:
            inputs: float (B, T, D), inputs of the layer.
            mask: bool (B, T), False for padding, which is not drawn. None: the mask that `inputs` carries, if any.
            seed: integer seed. None: the seed of the layer.

        Raises:
            ValueError: if fewer than `num_clusters` tokens remain, or the selection has no centroids.
        """
        check_has_centroids(self.selection)
        if not self.built:
            self.build(inputs.shape)
        mask = mask_of_tokens("mask", mask, inputs)
        query = AttentionLayer.project_heads(self, self._query, ops.cast(inputs, self.compute_dtype))
        query = fold_groups(query, self.num_key_heads)
        if mask is not None:
            mask = ops.tile(ops.broadcast_to(mask, inputs.shape[:2]), (1, self.num_heads // self.num_key_heads))
        self._clusters.start_from_data(query, mask, seed)  # type: ignore[union-attr]  # checked above

    def make_selectors(self) -> list[Selector | None]:
        (plan,), self._clusters = head_plans(self), None
        (leaf,) = plan.leaves
        if self.selection == "hash":
            sizes = self.num_key_heads, self.num_clusters.bit_length() - 1, self.key_dim
            self.planes = random_directions(self, "planes", sizes)
        elif self.selection != "random":
            self._clusters = self._make_centroids()
        if self.selection in OF_ALL_TOKENS:
            choose = strided_members if self.selection == "strided" else best_members
            return [MemberSelector(self._scores, choose, self.cluster_size, self._clusters, self.num_key_heads)]
        if isinstance(leaf.pattern, TopKeys):
            return [KeySelector(self._clusters, leaf.pattern, self.num_key_heads)]
        grouper = RandomGroups(self.num_clusters, self.seed) if self._clusters is None else self._clusters
        return [for_leaf(GroupSelector(grouper, self.num_clusters, self.num_key_heads), leaf)]

    def _make_centroids(self) -> Centroids:
        # The published code counts the commitment of shared queries twice, as queries and as keys.
        twice = 2.0 if self.share_qk and self.reproduce_reference else 1.0
        return Centroids(
            self.num_key_heads,
            self.num_clusters,
            self.key_dim,
            self.ema_decay,
            self.revive_after,
            self.seed,
            twice * self.commitment_loss,
            name="clusters",
            dtype=self.dtype_policy,
        )

    def attention_options(self, training: bool = False) -> AttentionOptions:
        options = super().attention_options()
        by_default = self.mask_self is None and self.selection in OF_ALL_TOKENS
        return options._replace(hide_self=None) if by_default else options

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        check_lengths(self.selection, heads[0], heads[2])
        if causal and self.selection in OF_ALL_TOKENS:
            attention_checks.warn_once(
                self,
                "under a causal mask is not causal: which tokens a cluster holds depends on the whole sequence. Use "
                "selection='nearest', the default.",
            )
        return super().compute_attention(heads, masks, causal, training, return_weights)

    def _scores(self, heads: Tensor) -> Tensor:
        """Compute the scores of queries or keys (B, N, T, H) for the clusters of their key head, (B, N, T, K)."""
        rows = fold_groups(heads, self.num_key_heads)
        if self.selection == "hash":
            scores = hash_scores(rows, ops.convert_to_tensor(self.planes))
        else:
            scores = kmeans.scores(rows, self._clusters.read())  # type: ignore[union-attr]  # all but "hash" have them
        return ops.reshape(scores, (*shape(heads)[:3], shape(scores)[-1]))

    @property
    def cache_unsupported_reason(self) -> str | None:
        if self.selection in OF_ALL_TOKENS:
            return f"with selection={self.selection!r} which tokens a cluster holds depends on later tokens"
        return super().cache_unsupported_reason

    def get_config(self) -> Config:
        names: tuple[str, ...] = ("num_clusters", "cluster_size", "selection", "distance")
        names += ("use_successor_values", "ema_decay", "commitment_loss", "revive_after", "reproduce_reference")
        config = {**super().get_config(), **{name: getattr(self, name) for name in names}}
        return {name: value for name, value in config.items() if name not in ("pattern", "normalize_queries_and_keys")}


def _pattern_of(
    num_clusters: int,
    cluster_size: int,
    selection: str,
    use_successor_values: bool,
    share_qk: bool,
    reproduce_reference: bool,
) -> Pattern:
    """Return the pattern of a selection."""
    if selection == "top_keys":
        return TopKeys(num_clusters, cluster_size)
    if selection in OF_ALL_TOKENS:
        by_rank = share_qk or reproduce_reference  # equals the order by position where queries are used as keys
        return BestOfCluster(num_clusters, cluster_size, by_rank, extra_count=0.01 if reproduce_reference else 0.0)
    nearest = Nearest(num_clusters, cluster_size)
    return Successors(nearest) if use_successor_values else nearest


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise a `ValueError` for an invalid argument of `RoutingAttention`."""
    for name in ("num_clusters", "cluster_size"):
        checks.check_count(name, arguments[name])
    checks.check_choice("selection", arguments["selection"], SELECTIONS)
    checks.check_choice("distance", arguments["distance"], DISTANCES)
    position = arguments["kwargs"].get("position")
    if arguments["distance"] == "token" and position != "relative":
        raise ValueError(
            "`distance` must be 'rank' unless `position` is 'relative'; other positions are distances in tokens. "
            f"Received: distance='token', position={position!r}."
        )
    checks.check_switch("share_qk", arguments["share_qk"])
    checks.check_optional_switch("mask_self", arguments["mask_self"])
    attention_checks.check_successors(arguments["use_successor_values"], arguments["mask_self"])
    if arguments["use_successor_values"] and arguments["selection"] in OF_ANY_LENGTHS:
        raise ValueError(
            "`selection` must be 'nearest' or 'random' with `use_successor_values`. "
            f"Received: selection={arguments['selection']!r}."
        )
    checks.check_switch("reproduce_reference", arguments["reproduce_reference"])
    if arguments["selection"] == "top_keys":
        _check_top_keys(arguments)
    checks.check_rate("ema_decay", arguments["ema_decay"])
    checks.check_not_negative("commitment_loss", arguments["commitment_loss"])
    checks.check_count("revive_after", arguments["revive_after"], minimum=0)
    num_clusters = arguments["num_clusters"]
    if arguments["selection"] == "hash" and (num_clusters < 2 or num_clusters & (num_clusters - 1)):
        raise ValueError(
            "`num_clusters` must be a power of two, at least 2, where `selection` is 'hash'. "
            f"Received: num_clusters={num_clusters}."
        )


def _check_top_keys(arguments):
    wrong = {
        "share_qk": "which needs a key projection",
        "mask_self": "where queries are not keys",
        "reproduce_reference": "which the published code does not have",
    }
    for name, reason in wrong.items():
        if arguments[name]:
            raise ValueError(f"`{name}` must be False with selection='top_keys', {reason}. Received: {name}=True.")


def check_has_centroids(selection: str) -> None:
    """Raise a `ValueError` for a selection without centroids."""
    if selection in WITHOUT_CENTROIDS:
        raise ValueError(
            f"`selection` must have centroids, so it must not be one of {list(WITHOUT_CENTROIDS)}. "
            f"Received: selection={selection!r}."
        )


def check_sink(use_sink: bool, selection: str) -> None:
    """Raise a `ValueError` for a sink with a selection that has several softmaxes per query."""
    if use_sink and selection in OF_ALL_TOKENS:
        raise ValueError(
            "`use_sink` must be False with a selection that has several softmaxes per query: "
            f"pass selection='nearest'. Received: use_sink=True, selection={selection!r}."
        )


def check_lengths(selection: str, query: Tensor, value: Tensor) -> None:
    """Raise a `ValueError` if a selection does not support queries and values (B, N, T, H) of these lengths."""
    lengths = query.shape[2], value.shape[2]
    if selection not in OF_ANY_LENGTHS and None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(
            f"`selection` must be one of {list(OF_ANY_LENGTHS)} where `query` and `value` have different lengths. "
            f"Received: selection={selection!r}, lengths {lengths[0]} and {lengths[1]}."
        )
