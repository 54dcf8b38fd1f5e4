"""Routing attention as a Keras layer."""

import dataclasses

import keras
from keras import ops

from tf_sparse_attention.layers import routing_checks
from tf_sparse_attention.layers.call_masks import mask_of_tokens
from tf_sparse_attention.layers.centroids import Centroids
from tf_sparse_attention.layers.content_attention import ContentAttention
from tf_sparse_attention.layers.routing_checks import OF_ALL_TOKENS, WITHOUT_CENTROIDS
from tf_sparse_attention.layers.state import random_directions
from tf_sparse_attention.ops import kmeans, routing
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import dense_mask, group_band_mask, self_only_when_alone
from tf_sparse_attention.ops.routing_top_k import (
    best_members,
    hash_scores,
    strided_members,
    top_k_attention,
    top_k_pattern,
)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class RoutingAttention(ContentAttention):
    """Multi-head attention inside clusters of tokens found by online k-means (Roy et al. 2021), in O(T cluster_size).

    Queries and keys are layer-normalised without scale, x = LN(x W); scores are LN(q) . LN(k), not divided; a token
    belongs to the centroid mu of the largest x . mu. In training the centroids follow their tokens by an exponential
    moving average and `commitment_loss` mean((x - mu)^2) is added to the loss; outside training they do not move.

    `selection`: "nearest": a query sees the last `cluster_size` keys of its own cluster up to its position, itself
    included (and the `cluster_size` - 1 next ones if not causal). Causal by construction. "top_k": every centroid
    takes the `cluster_size` best tokens of the whole sequence and a token gets the mean over the clusters that hold
    it, zeros if none does (about (1 - 1/K)^K of the tokens where T = K cluster_size). Not causal, whatever the mask;
    which of equal tokens is taken is up to rounding, and so may change with the batch size. "strided" and "hash": as
    "top_k", with members by `ops.routing_top_k.strided_members`, near and far ones (these are not the strides of
    `StridedAttention`), or by `hash_scores`: the first tokens of a hash bucket, in place of the centroids. Both are in
    the paper's code and, like it, not causal. "random": as "nearest" in clusters that depend on the position alone,
    the paper's ablation.

    Note: differs from the paper, whose only selection is "top_k": through it earlier outputs depend on later tokens.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_clusters: K, centroids of each head; a power of two for "hash".
        cluster_size: w, keys of its cluster that a query sees; members of a cluster for "top_k", "strided", "hash".
        selection: None or one of those above. None: "nearest" in a causal call, else "top_k".
        share_qk: whether queries serve as keys, default True as in the paper's causal models; then no key kernel
            exists and `value` must be None. Separate keys cost 3 to 4 times as much with "nearest".
        mask_self: whether a token sees itself only when it sees nothing else. None: where queries and keys are shared
            and the selection is "nearest" or "random"; LN(q) . LN(q) = H outweighs every other score.
        distance: of position "relative": "rank" (default), between places in the cluster, as published; or "token", in
            positions, on the scores alone: about twice the cost of the layer.
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
            different lengths with "nearest" or "random".

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = RoutingAttention(num_heads=2, key_dim=32, num_clusters=8, cluster_size=128)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        num_clusters,
        cluster_size,
        *,
        selection=None,
        share_qk=True,
        mask_self=None,
        distance="rank",
        ema_decay=0.999,
        commitment_loss=1e-4,
        revive_after=100,
        reproduce_reference=False,
        **kwargs,
    ):
        arguments = dict(locals())
        super().__init__(num_heads, key_dim, selection=selection, share_qk=share_qk, mask_self=mask_self, **kwargs)
        routing_checks.check_arguments(arguments)
        self.num_clusters = num_clusters
        self.cluster_size = cluster_size
        self.distance = distance
        self.ema_decay = ema_decay
        self.commitment_loss = commitment_loss
        self.revive_after = revive_after
        self.reproduce_reference = reproduce_reference

    @property
    def causal_selection(self):
        """Whether, under a causal mask, which keys a query sees is independent of later tokens."""
        return self.selection not in OF_ALL_TOKENS

    @property
    def has_relative_values(self):
        return self.distance == "rank"

    @property
    def reach(self):
        return self.cluster_size - 1

    @property
    def centroids(self):
        """The centroids, float32 (N, K, H); None with "hash" and "random", which have none."""
        return None if self._clusters is None else self._clusters.centroids

    def start_from_data(self, inputs, mask=None, seed=None):
        """Moves the centroids to tokens drawn at random, which shortens the first phase of training.

        Args:
            inputs: float (B, T, D), inputs of the layer.
            mask: bool (B, T), False for padding, which is not drawn. None: the mask that `inputs` carries, if any.
            seed: integer of the draw. None: that of the layer.

        Raises:
            ValueError: if fewer than `num_clusters` tokens are not masked out, or the selection has no centroids.
        """
        routing_checks.check_has_centroids(self.selection)
        if not self.built:
            self.build(inputs.shape)
        mask = mask_of_tokens("mask", mask, inputs)
        if mask is not None:
            mask = ops.broadcast_to(mask, inputs.shape[:2])
        query = self.project(ops.cast(inputs, self.compute_dtype))[0]
        self._clusters.start_from_data(query, mask, seed)

    def build(self, query_shape, value_shape=None, key_shape=None, segment_ids_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self._clusters = None if self.selection in WITHOUT_CENTROIDS else self._make_centroids()
        if self.selection == "hash":
            sizes = self.num_heads, self.num_clusters.bit_length() - 1, self.key_dim
            self.planes = random_directions(self, "planes", sizes)

    def _make_centroids(self):
        sizes = self.num_heads, self.num_clusters, self.key_dim
        settings = self.ema_decay, self.revive_after, self.seed
        return Centroids(*sizes, *settings, name="clusters", dtype=self.dtype_policy)

    @property
    def position_of_heads(self):
        position = super().position_of_heads
        if self.position == "relative" and self.distance == "token":
            return dataclasses.replace(position, by_token=True)
        return position

    def attend_heads(self, query, key, value, masks, causal, training, return_weights):
        selection = self._selection_of(causal, query, value)
        query = kmeans.normalize(query)
        key = query if self.share_qk else kmeans.normalize(key)
        centroids = self._read_centroids()
        if training and self.trainable and centroids is not None:
            self._learn(query, key, centroids, masks)
        shared = {
            "mask_self": self._masks_self(selection),
            "masks": masks,
            "position": self.position_of_heads,
            "dropout": self.dropout_of_weights(training),
            "return_weights": return_weights,
        }
        places = [ops.cast(query, self.compute_dtype)]
        places.append(places[0] if self.share_qk else ops.cast(key, self.compute_dtype))
        if selection in OF_ALL_TOKENS:
            members = self._members(selection, query, key, centroids, masks)
            extra = 0.01 if self.reproduce_reference else 0.0
            order = self._top_k_order(causal)
            return top_k_attention(*places, value, *members, causal=order, extra_count=extra, **shared)
        groups = self._groups(query, key, centroids, masks, selection)
        shared["causal"] = causal
        attended = self.attend_bands(*places, value, groups, self.cluster_size, **shared)
        return attended.output, attended.weights

    def _read_centroids(self):
        return None if self._clusters is None else self._clusters.read()

    def _selection_of(self, causal, query, value):
        """Returns the selection of this call, having checked that it can serve it."""
        selection = self.selection or ("nearest" if causal else "top_k")
        routing_checks.check_lengths(selection, query, value)
        if causal and selection in OF_ALL_TOKENS:
            self.warn_of_causal_mask("which tokens a cluster holds", instead="nearest")
        return selection

    def _masks_self(self, selection):
        return self.share_qk and selection not in OF_ALL_TOKENS if self.mask_self is None else self.mask_self

    def _top_k_order(self, causal):
        """Returns how `top_k_attention` hides later keys; by rank is by position where queries are the keys."""
        if not causal:
            return None
        return "rank" if self.share_qk or self.reproduce_reference else "position"

    def _learn(self, query, key, centroids, masks):
        """Adds the commitment loss and moves the centroids by queries and keys together."""
        kinds = [(query, masks.key_mask)] if self.share_qk else [(query, masks.query_mask), (key, masks.key_mask)]
        seen, loss = [], 0.0
        for x, token_mask in kinds:
            clusters = kmeans.nearest(x, centroids)
            seen.append(kmeans.statistics(x, clusters, self.num_clusters, token_mask))
            loss = loss + kmeans.commitment(x, clusters, centroids, token_mask)
        if self.commitment_loss:
            twice = 2.0 if self.share_qk and self.reproduce_reference else 1.0
            self.add_loss(ops.cast(twice * self.commitment_loss * loss, keras.config.floatx()))
        self._clusters.observe(kmeans.Statistics(*(sum(parts[1:], parts[0]) for parts in zip(*seen, strict=True))))

    def _members(self, selection, query, key, centroids, masks):
        """Returns the members of each cluster among queries and among keys."""

        def members_of(x, token_mask):
            if selection == "hash":
                return best_members(hash_scores(x, ops.convert_to_tensor(self.planes)), self.cluster_size, token_mask)
            choose = strided_members if selection == "strided" else best_members
            return choose(kmeans.scores(x, centroids), self.cluster_size, token_mask)

        keys = members_of(key, masks.key_mask)
        return (keys, keys) if self.share_qk else (members_of(query, masks.query_mask), keys)

    def _groups(self, query, key, centroids, masks, selection):
        """Returns the groups of queries and of keys, int32 (B, N, T) and (B, N, S)."""

        def clusters_of(x):
            return [self._clusters_of(x, centroids, selection)]

        (groups,) = self.groups_of_tokens(clusters_of, query, key, self.num_clusters, masks)
        return groups

    def _clusters_of(self, x, centroids, selection, positions=None):
        """Returns the cluster of each token, int32 (B, N, T); tokens are at positions (B or 1, T), or from 0 on."""
        if selection == "nearest":
            return kmeans.nearest(x, centroids)
        batch, heads, length = shape(x)[:3]
        positions = ops.arange(length, dtype="int32")[None] if positions is None else positions
        clusters = routing.random_clusters_at(positions, heads, self.num_clusters, self.seed)
        return ops.broadcast_to(clusters, (batch, heads, length))

    @property
    def reason_against_cache(self):
        if self.selection in OF_ALL_TOKENS:
            return f"with selection={self.selection!r} which tokens a cluster holds depends on later ones"
        return None

    @property
    def sizes_of_rounds(self):
        return 1, self.num_clusters, self.cluster_size

    @property
    def masks_self_in_decoding(self):
        return self._masks_self(self._causal_selection)

    def compared(self, query, key):
        return tuple(ops.cast(kmeans.normalize(x), self.compute_dtype) for x in (query, key))

    def rounds_of_groups(self, heads, positions):
        return [self._clusters_of(kmeans.normalize(heads), self._read_centroids(), self._causal_selection, positions)]

    @property
    def _causal_selection(self):
        return self.selection or "nearest"

    def pattern(self, query, key, masks, causal):
        query = kmeans.normalize(query)
        key = query if self.share_qk else kmeans.normalize(key)
        centroids = self._read_centroids()
        selection = self.selection or ("nearest" if causal else "top_k")
        alone = self_only_when_alone if self._masks_self(selection) else lambda mask: mask
        if selection in OF_ALL_TOKENS:
            members = self._members(selection, query, key, centroids, masks)
            mask = top_k_pattern(*members, shape(query)[2], shape(key)[2], self._top_k_order(causal))
            allowed = dense_mask(None, masks)
            mask = mask if allowed is None else ops.logical_and(mask, allowed[:, :, None])
            return ops.any(alone(mask), axis=2)
        groups = self._groups(query, key, centroids, masks, selection)
        key_mask = None if masks.key_mask is None else masks.key_mask[:, None]
        return alone(dense_mask(group_band_mask(*groups, self.cluster_size, causal, key_mask), masks))

    def get_config(self):
        names = ("num_clusters", "cluster_size", "distance", "ema_decay", "commitment_loss", "revive_after")
        names += ("reproduce_reference",)
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
