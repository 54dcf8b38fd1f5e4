"""Routing attention as a Keras layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads
from tf_sparse_attention.layers.attention.groupers import Grouper, RandomGroups, sides_of, train_grouper
from tf_sparse_attention.layers.attention.sparse_attention import SparseAttention
from tf_sparse_attention.layers.parts.centroids import Centroids
from tf_sparse_attention.layers.parts.masks import mask_of_tokens
from tf_sparse_attention.layers.parts.variables import random_directions
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.grouped_heads import fold_groups
from tf_sparse_attention.ops.groups import best_group
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.members import best_members, hash_scores, strided_members
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions
from tf_sparse_attention.patterns.nearest import Nearest
from tf_sparse_attention.patterns.pattern import Known, Pattern
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.patterns.top_keys import TopKeys
from tf_sparse_attention.types import Config, Tensor

OF_ALL_TOKENS = ("top_k", "strided", "hash")  # selections that look at the whole sequence for queries and keys
OF_ANY_LENGTHS = (*OF_ALL_TOKENS, "top_keys")
WITHOUT_CENTROIDS = ("hash", "random")
SELECTIONS = ("nearest", *OF_ANY_LENGTHS, "random")
DISTANCES = ("rank", "token")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class RoutingAttention(SparseAttention):
    """Multi-head attention inside clusters of tokens found by online k-means (Roy et al. 2021), in O(T cluster_size).

    Queries and keys are layer-normalised without scale, x = LN(x W); scores are LN(q) . LN(k), not divided; a token
    belongs to the centroid mu of the largest x . mu. In training the centroids follow their tokens by an exponential
    moving average and `commitment_loss` mean((x - mu)^2) is added to the loss; outside training they do not move.

    `selection` decides which keys of its cluster a query sees:

    - "nearest" (default): the last `cluster_size` keys up to its position, itself included, and the `cluster_size` - 1
      next ones if not causal. Causal by construction. Every token attends.
    - "top_keys": the `cluster_size` best keys of its nearest centroid, of all keys of the sequence, of equal ones the
      earlier. A query's result depends on no other query: for cross-attention to a sequence of any length, with a
      cross-attention cache too, and for encoders. A causal call is an error, and so are `segment_ids`, as the best keys
      of a packed row are not the best of each of its documents. Half of the time of "nearest" with separate keys.
    - "top_k": every centroid takes the `cluster_size` best tokens of the whole sequence, and a token gets the mean over
      the clusters that hold it, zeros if none does. About (1 - 1/K)^K of the tokens, a third, get zeros where T = K
      `cluster_size`; `tsa.analysis.health` counts them. Not causal, whatever the mask; which of equal tokens is taken
      is up to rounding, and so may change with the batch size.
    - "strided": as "top_k", but each centroid takes every (T / `cluster_size`)-th token by falling score (these are not
      the strides of `StridedAttention`). "hash": as "top_k", but the first `cluster_size` tokens of a hash bucket in
      place of a centroid's best. Both are in the paper's code and, like it, not causal.
    - "random": as "nearest" in clusters that depend on the position alone, the paper's ablation.

    Note: differs from the paper, whose only selection is "top_k": through it earlier outputs depend on later tokens,
    and a query on the others. "top_keys", one cluster for each query and many for a key, is this library's.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_clusters: K, centroids of each head; a power of two for "hash".
        cluster_size: w, keys of its cluster that a query sees; members of a cluster for all but "nearest", "random".
        selection: one of those above. Default "nearest". "top_k" gives zeros to about a third of the tokens.
        share_qk: whether queries serve as keys, default True as in the paper's causal models; then no key kernel
            exists and `value` must be None. Separate keys cost 3 to 4 times as much with "nearest". Must be False with
            "top_keys".
        mask_self: whether a token sees itself only when it sees nothing else. None: where queries and keys are shared
            and the selection is "nearest" or "random"; LN(q) . LN(q) = H outweighs every other score.
        use_successor_values: whether a token sees the last `cluster_size` earlier tokens of its cluster, itself never,
            each with the value of the token after it, as an induction head does: "where I was before, what came
            next" (`tsa.patterns.Successors`). In causal self-attention with "nearest" or "random". Default False.
        distance: of position "relative": "rank" (default), between ranks in the cluster, as published (in "nearest" and
            "top_keys" a query that is no key has that of the last key up to its position); or "token", in positions,
            on the scores alone: about twice the cost of the layer.
        ema_decay: weight of the past in the moving averages, in [0, 1). Default 0.999.
        commitment_loss: factor of the commitment loss, default 1e-4. 0: none.
        revive_after: training steps without a token after which a centroid moves to the fullest one. Default 100;
            0: never.
        reproduce_reference: whether to keep what the published code does otherwise: means divided by the count + 0.01,
            the commitment of shared queries counted twice, causality by rank in the cluster. Default False.
        **kwargs: the other arguments of `AttentionLayer`.

    With `share_qk` a token that `key_mask` or `value_mask` hides is in no cluster: as a query it sees nothing.

    Raises:
        ValueError: for a wrong argument; for a `value` other than the query with `share_qk`; for sequences of
            different lengths with "nearest" or "random"; for a causal call or `segment_ids` with "top_keys".

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = RoutingAttention(num_heads=2, key_dim=32, num_clusters=8, cluster_size=128)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    seed: int  # drawn where none is given

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
        """The centroids, float32 (N, K, H); None with "hash" and "random", which have none."""
        return None if self._clusters is None else self._clusters.centroids

    def start_from_data(self, inputs: Tensor, mask: Tensor | None = None, seed: int | None = None) -> None:
        """Moves the centroids to tokens drawn at random, which shortens the first phase of training.

        Args:
            inputs: float (B, T, D), inputs of the layer.
            mask: bool (B, T), False for padding, which is not drawn. None: the mask that `inputs` carries, if any.
            seed: integer of the draw. None: that of the layer.

        Raises:
            ValueError: if fewer than `num_clusters` tokens are not masked out, or the selection has no centroids.
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

    def _make_groupers(self) -> list[Grouper | None]:
        self._clusters = None
        if self.selection == "hash":
            sizes = self.num_key_heads, self.num_clusters.bit_length() - 1, self.key_dim
            self.planes = random_directions(self, "planes", sizes)
            return [None]
        if self.selection == "random":
            return [RandomGroups(self.num_clusters, self.seed)]
        # The published code counts the commitment of shared queries twice, as queries and as keys.
        twice = 2.0 if self.share_qk and self.reproduce_reference else 1.0
        self._clusters = Centroids(
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
        return [self._clusters]

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

    def describe_tokens(
        self, query: Tensor, key: Tensor | None, masks: TokenMasks, training: bool = False
    ) -> Sequence[Known] | None:
        if self.selection not in OF_ALL_TOKENS:
            return super().describe_tokens(query, key, masks, training)
        sides = sides_of(query, key, masks)
        scores = [self._scores(x) for x, _ in sides]
        choose = strided_members if self.selection == "strided" else best_members
        members = [choose(x, self.cluster_size, mask) for x, (_, mask) in zip(scores, sides, strict=True)]
        if training and self._clusters is not None:
            groups = [best_group(x) for x in scores]
            known = [(*side, own) for side, own in zip(sides, groups, strict=True)]
            train_grouper(self, self._clusters, known, self.num_key_heads)
        return [(members[0], members[-1])]

    def _scores(self, heads: Tensor) -> Tensor:
        """Returns the scores of queries (B, N, T, H) or keys for each cluster of their key head, (B, N, T, K)."""
        rows = fold_groups(heads, self.num_key_heads)
        if self.selection == "hash":
            scores = hash_scores(rows, ops.convert_to_tensor(self.planes))
        else:
            scores = kmeans.scores(rows, self._clusters.read())  # type: ignore[union-attr]  # all but "hash" have them
        return ops.reshape(scores, (*shape(heads)[:3], shape(scores)[-1]))

    @property
    def cache_unsupported_reason(self) -> str | None:
        if self.selection in OF_ALL_TOKENS:
            return f"with selection={self.selection!r} which tokens a cluster holds depends on later ones"
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
        by_rank = share_qk or reproduce_reference  # equals the order by position where queries serve as keys
        return BestOfCluster(num_clusters, cluster_size, by_rank, extra_count=0.01 if reproduce_reference else 0.0)
    nearest = Nearest(num_clusters, cluster_size)
    return Successors(nearest) if use_successor_values else nearest


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises a `ValueError` for a wrong argument of `RoutingAttention`, given by name."""
    for name in ("num_clusters", "cluster_size"):
        checks.check_count(name, arguments[name])
    checks.check_choice("selection", arguments["selection"], SELECTIONS)
    checks.check_choice("distance", arguments["distance"], DISTANCES)
    position = arguments["kwargs"].get("position")
    if arguments["distance"] == "token" and position != "relative":
        raise ValueError(
            "`distance` must be 'rank' unless `position` is 'relative'; the others go by token. "
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
            "`num_clusters` must be 2, 4, 8 or another power of two where `selection` is 'hash'. "
            f"Received: num_clusters={num_clusters}."
        )


def _check_top_keys(arguments):
    wrong = {
        "share_qk": "which is for queries and keys of their own",
        "mask_self": "where a query is no key",
        "reproduce_reference": "which is not in the published code",
    }
    for name, reason in wrong.items():
        if arguments[name]:
            raise ValueError(f"`{name}` must be False with selection='top_keys', {reason}. Received: {name}=True.")


def check_has_centroids(selection: str) -> None:
    """Raises a `ValueError` for a selection without centroids."""
    if selection in WITHOUT_CENTROIDS:
        raise ValueError(
            f"`selection` must be one with centroids to start them from data, not one of {list(WITHOUT_CENTROIDS)}. "
            f"Received: selection={selection!r}."
        )


def check_sink(use_sink: bool, selection: str) -> None:
    """Raises a `ValueError` for a sink with a selection that has several softmaxes for a query."""
    if use_sink and selection in OF_ALL_TOKENS:
        raise ValueError(
            "`use_sink` must be False where clusters choose queries, each of which has several softmaxes then: "
            f"pass selection='nearest'. Received: use_sink=True, selection={selection!r}."
        )


def check_lengths(selection: str, query: Tensor, value: Tensor) -> None:
    """Raises a `ValueError` if a selection cannot serve queries and values (B, N, T, H) of these lengths."""
    lengths = query.shape[2], value.shape[2]
    if selection not in OF_ANY_LENGTHS and None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(
            f"`selection` must be one of {list(OF_ANY_LENGTHS)} where `query` and `value` have different lengths. "
            f"Received: selection={selection!r}, lengths {lengths[0]} and {lengths[1]}."
        )
