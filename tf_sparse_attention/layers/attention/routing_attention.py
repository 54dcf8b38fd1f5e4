"""Routing attention (Routing Transformer)."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads, head_plans
from tf_sparse_attention.layers.attention.sparse_attention import SparseAttention
from tf_sparse_attention.layers.parts.call_inputs import token_mask
from tf_sparse_attention.layers.parts.selectors import Centroids, find_layers, make_selectors
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.shapes import fold_groups
from tf_sparse_attention.patterns.best_of_cluster import MEMBER_SELECTIONS, BestOfCluster
from tf_sparse_attention.patterns.engine.head_plans import AttentionOptions
from tf_sparse_attention.patterns.nearest import Nearest, RandomGroups
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.selection import Selector
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.patterns.top_keys import TopKeys
from tf_sparse_attention.types import Config, Tensor

CROSS_SELECTIONS = (*MEMBER_SELECTIONS, "top_keys")  # queries and values may have different lengths
SELECTIONS_WITHOUT_CENTROIDS = ("hash", "random")
SELECTIONS = ("nearest", *CROSS_SELECTIONS, "random")
DISTANCES = ("rank", "token")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class RoutingAttention(SparseAttention):
    """Routing attention: each query attends to keys of its k-means cluster, in O(T cluster_size).

    Queries and keys are u = LN(x W), layer-normalized without scale. Scores are dot products of these queries and keys,
    without the factor 1 / sqrt(key_dim). A token belongs to the cluster c with the largest u . mu_c. In training, each
    centroid mu_c is an exponential moving average of the vectors u in its cluster. The layer adds the loss
    `commitment_loss` times mean((u - mu)^2). Outside training, centroids are constant. The layer is a `SparseAttention`
    with a cluster pattern. Source: Roy et al. 2021, "Efficient Content-Based Sparse Attention with Routing
    Transformers".

    `selection` determines which keys a query attends to:

    - "nearest" (default): the last `cluster_size` keys of the query's cluster, up to and including its position.
      Without a causal mask, also the next `cluster_size` - 1 keys. Under a causal mask, results never depend on later
      tokens. With `share_qk`, every unmasked query attends to at least one key.
    - "top_keys": the `cluster_size` keys of the whole sequence with the largest k . mu_c. Among equal scores, the
      earlier key wins. The result of a query does not depend on other queries. Suited to encoders, and to
      cross-attention to a sequence of any length, with or without a cache. Causal masks and `segment_ids` raise an
      error. With `share_qk=False`, "top_keys" takes half the time of "nearest".
    - "top_k": each centroid selects the `cluster_size` closest queries and the `cluster_size` closest keys of the whole
      sequence, and these queries attend to these keys. The output of a token is the mean over the clusters that
      selected it, or zeros if none did. If T = K * `cluster_size`, about a third of the tokens, (1 - 1/K)^K, get zeros.
      `tsa.analysis.health` counts these tokens. Results depend on later tokens, even under a causal mask. Rounding
      decides between tokens with equal scores, so results can depend on the batch size.
    - "strided": like "top_k", but each centroid selects every (T / `cluster_size`)-th token by descending score. An
      option of the published code, unrelated to `StridedAttention`. Results depend on later tokens.
    - "hash": like "top_k", but each hash bucket selects its first `cluster_size` tokens. An option of the published
      code. Results depend on later tokens.
    - "random": like "nearest", with clusters that depend only on the position. An ablation in the paper.

    Note: differs from the paper, which has only "top_k". With "top_k", outputs depend on later tokens and on other
    queries. "top_keys" is new in this library.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_clusters: K, centroids per head. A power of two for "hash".
        cluster_size: w, number of keys that a query attends to; for "nearest" and "random", number per side.
        selection: "nearest", "top_keys", "top_k", "strided", "hash" or "random". Default "nearest".
        share_qk: whether queries are used as keys. The layer then has no key projection, and `value` must be None. A
            token masked by `key_mask` or `value_mask` then belongs to no cluster and attends to no key. Default True,
            as in the paper's causal models. With False, "nearest" takes 3 to 4 times as long. Must be False for
            "top_keys".
        mask_self: whether to mask a token's own key, unless it is the only key of the token. None (default): True for
            "nearest" and "random" with `share_qk`, because LN(q) . LN(q) = H is then larger than every other score.
        use_successor_values: whether attention to key j reads its successor value, the value of token j + 1, as in an
            induction head. A query attends to the last `cluster_size` earlier tokens of its cluster and never to itself
            (`tsa.patterns.Successors`). Only for causal self-attention with "nearest" or "random". Default False.
        distance: kind of distance for `position="relative"`. "rank" (default): the difference of ranks in the cluster,
            as published. With `share_qk=False`, the rank of a query in "nearest" and "top_keys" is the rank of the last
            key at or before the query's position. "token": the difference of positions. The position table then applies
            only to scores, and the layer costs about twice as much.
        ema_decay: decay of the moving averages, in [0, 1). Default 0.999.
        commitment_loss: factor of the commitment loss. Default 1e-4. 0 disables it.
        revive_after: a centroid that gets no token for this many training steps moves to the largest cluster. Default
            100. 0: never.
        reproduce_reference: whether to reproduce the published code. The mean over a token's clusters is then the sum
            divided by (count + 0.01). With `share_qk`, the commitment loss counts twice. The causal mask compares ranks
            in the cluster instead of positions. Default False.
        **kwargs: the other arguments of `AttentionLayer`.

    Raises:
        ValueError: if an argument is invalid, if `value` is given with `share_qk`, if sequences have different lengths
            with "nearest" or "random", or if "top_keys" gets a causal mask or `segment_ids`.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = RoutingAttention(num_heads=2, key_dim=32, num_clusters=8, cluster_size=128)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    seed: int  # random for None

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
        _check_arguments(dict(locals()))
        # The published code counts the commitment of shared queries twice, as queries and as keys.
        commitment = 2.0 * commitment_loss if share_qk and reproduce_reference else commitment_loss
        centroids = ema_decay, commitment, revive_after
        if selection == "top_keys":
            pattern: Pattern = TopKeys(num_clusters, cluster_size, *centroids)
        elif selection in MEMBER_SELECTIONS:
            by_rank = share_qk or reproduce_reference  # with `share_qk`, the order by rank is the order by position
            extra_count = 0.01 if reproduce_reference else 0.0
            pattern = BestOfCluster(num_clusters, cluster_size, *centroids, selection, by_rank, extra_count)
        else:
            if selection == "random":
                pattern = RandomGroups(num_clusters, cluster_size)
            else:
                pattern = Nearest(num_clusters, cluster_size, *centroids)
            pattern = Successors(pattern) if use_successor_values else pattern
        super().__init__(
            num_heads,
            key_dim,
            pattern,
            share_qk=share_qk,
            mask_self=mask_self,
            normalize_queries_and_keys=True,
            **kwargs,
        )
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
        """Initialize the centroids from random tokens. This speeds up early training.

        Args:
            inputs: float (B, T, D), inputs of the layer.
            mask: bool (B, T), False for padding. None: the mask that `inputs` carries, if any.
            seed: integer seed. None: the seed of the layer.

        Raises:
            ValueError: if there are fewer than `num_clusters` unmasked tokens, or if the selection has no centroids.
        """
        if self.selection in SELECTIONS_WITHOUT_CENTROIDS:
            raise ValueError(
                f"`selection` must not be one of {list(SELECTIONS_WITHOUT_CENTROIDS)}, which have no centroids. "
                f"Received: selection={self.selection!r}."
            )
        if not self.built:
            self.build(inputs.shape)
        mask = token_mask("mask", mask, inputs)
        query = AttentionLayer.project_heads(self, self._query, ops.cast(inputs, self.compute_dtype))
        query = fold_groups(query, self.num_key_heads)
        if mask is not None:
            mask = ops.tile(ops.broadcast_to(mask, inputs.shape[:2]), (1, self.num_heads // self.num_key_heads))
        self._clusters.start_from_data(query, mask, seed)  # type: ignore[union-attr]  # checked above

    def make_selectors(self) -> list[Selector | None]:
        selectors = make_selectors(self, head_plans(self), names=("clusters", "planes"))
        self._clusters: Centroids | None = next(iter(find_layers(selectors)), None)
        return selectors

    def attention_options(self, training: bool = False) -> AttentionOptions:
        options = super().attention_options()
        is_default = self.mask_self is None and self.selection in MEMBER_SELECTIONS
        return options._replace(hide_self=None) if is_default else options

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        lengths = heads[0].shape[2], heads[2].shape[2]
        if self.selection not in CROSS_SELECTIONS and None not in lengths and lengths[0] != lengths[1]:
            raise ValueError(
                f"`selection` must be one of {list(CROSS_SELECTIONS)} if `query` and `value` have different lengths. "
                f"Received: selection={self.selection!r}, lengths {lengths[0]} and {lengths[1]}."
            )
        return super().compute_attention(heads, masks, causal, training, return_weights)

    @property
    def cache_unsupported_reason(self) -> str | None:
        if self.selection in MEMBER_SELECTIONS:
            return f"with selection={self.selection!r} clusters depend on later tokens"
        return super().cache_unsupported_reason

    def get_config(self) -> Config:
        names: tuple[str, ...] = ("num_clusters", "cluster_size", "selection", "distance")
        names += ("use_successor_values", "ema_decay", "commitment_loss", "revive_after", "reproduce_reference")
        config = {**super().get_config(), **{name: getattr(self, name) for name in names}}
        return {name: value for name, value in config.items() if name not in ("pattern", "normalize_queries_and_keys")}


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    for name in ("num_clusters", "cluster_size"):
        checks.check_count(name, arguments[name])
    checks.check_choice("selection", arguments["selection"], SELECTIONS)
    checks.check_choice("distance", arguments["distance"], DISTANCES)
    position = arguments["kwargs"].get("position")
    if arguments["distance"] == "token" and position != "relative":
        raise ValueError(
            "`distance` must be 'rank' unless `position` is 'relative'. "
            f"Received: distance='token', position={position!r}."
        )
    checks.check_switch("share_qk", arguments["share_qk"])
    checks.check_optional_switch("mask_self", arguments["mask_self"])
    attention_checks.check_successors(arguments["use_successor_values"], arguments["mask_self"])
    if arguments["use_successor_values"] and arguments["selection"] in CROSS_SELECTIONS:
        raise ValueError(
            "`selection` must be 'nearest' or 'random' with `use_successor_values`. "
            f"Received: selection={arguments['selection']!r}."
        )
    checks.check_switch("reproduce_reference", arguments["reproduce_reference"])
    for name in ("share_qk", "mask_self", "reproduce_reference"):
        if arguments["selection"] == "top_keys" and arguments[name]:
            raise ValueError(f"`{name}` must be False with selection='top_keys'. Received: {name}=True.")
    checks.check_rate("ema_decay", arguments["ema_decay"])
    checks.check_not_negative("commitment_loss", arguments["commitment_loss"])
    checks.check_count("revive_after", arguments["revive_after"], minimum=0)
