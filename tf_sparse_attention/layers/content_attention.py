"""What the layers share in which content decides which keys a query sees: clusters of routing, buckets of hashing."""

import warnings

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.layers.state import drawn_seed
from tf_sparse_attention.ops.attend import combine_attended
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.decoding import at_most, attend_kept
from tf_sparse_attention.ops.decoding_across import kept_band, sort_keys
from tf_sparse_attention.ops.decoding_groups import empty_rings, fill_rings, keep_in_group, kept_in_group
from tf_sparse_attention.ops.groups import groups_of, segment_ranks
from tf_sparse_attention.ops.positions import rotate_key
from tf_sparse_attention.ops.routing import nearest_attention
from tf_sparse_attention.ops.routing_separate import separate_attention


class ContentAttention(AttentionLayer):
    """Base of `RoutingAttention` and `LSHAttention`.

    Args:
        num_heads: as in `AttentionLayer`, like `key_dim` and the keyword arguments.
        selection: how keys are selected; its value is checked by the subclass.
        share_qk: whether queries serve as keys, so that no key projection exists.
        mask_self: whether a token sees itself only when it sees nothing else. None: the subclass decides.

    Raises:
        ValueError: for a wrong argument.
    """

    def __init__(self, num_heads, key_dim, *, selection, share_qk, mask_self, **kwargs):
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_switch("share_qk", share_qk)
        if mask_self is not None:
            checks.check_switch("mask_self", mask_self)
        self.selection = selection
        self.share_qk = share_qk
        self.mask_self = mask_self
        self.seed = drawn_seed(self.seed)
        self._has_warned = False

    @property
    def has_keys(self):
        return not self.share_qk

    def groups_of_tokens(self, clusters_of, query, key, num_clusters, masks):
        """Returns the groups of queries and keys in each round, one for each pair of document and cluster.

        Args:
            clusters_of: function of vectors (B, N, T, H) to a list of their clusters in R rounds, int32 (B or 1, N, T).
            query: float (B, N, T, H).
            key: float (B, N, S, H), the query itself where queries serve as keys.
            num_clusters: K.
            masks: a `TokenMasks`.

        Returns:
            List of R pairs of int32 (B, N, T) and (B, N, S), twice the same where queries serve as keys.
        """
        rank = None if masks.query_segments is None else segment_ranks(masks.query_segments)[0]

        def groups(x, token_mask):
            return [groups_of(clusters, num_clusters, token_mask, rank) for clusters in clusters_of(x)]

        keys = groups(key, masks.key_mask)
        return list(zip(keys if self.share_qk else groups(query, masks.query_mask), keys, strict=True))

    def attend_bands(self, query, key, value, groups, size, **options):
        """Returns attention to the last `size` keys of each query's group, an `Attended`.

        Args:
            query: float (B, N, T, H).
            key: float (B, N, S, H).
            value: float (B, N, S, Hv).
            groups: pair of `groups_of_tokens`.
            size: keys of a group that a query sees on a side, counting itself.
            **options: of `ops.routing.nearest_attention`.
        """
        if self.share_qk:
            return nearest_attention(query, value, groups[0], size, key=None if key is query else key, **options)
        return separate_attention(query, key, value, *groups, size, **options)

    def warn_of_causal_mask(self, what, instead):
        """Warns, the first time, that a causal mask does not make a selection causal that looks ahead.

        Args:
            what: what depends on the whole sequence, as text.
            instead: the selection to use, as text.
        """
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"{type(self).__name__} with selection={self.selection!r} under a causal mask is not causal: {what} "
            f"depends on the whole sequence. Use selection={instead!r} (the default of causal calls).",
            stacklevel=3,
        )

    # Decoding: a ring of the last keys of each group, for each round of groups.

    @property
    def sizes_of_rounds(self):
        """The rounds of groups, the groups of each, and how many keys of its own group a query sees."""
        raise NotImplementedError(f"{type(self).__name__} must define `sizes_of_rounds`.")

    @property
    def masks_self_in_decoding(self):
        """Whether a token sees itself only when it sees nothing else, in causal calls."""
        raise NotImplementedError(f"{type(self).__name__} must define `masks_self_in_decoding`.")

    def compared(self, query, key):
        """Returns queries and keys as their scores compare them, in the compute dtype, given projected heads."""
        raise NotImplementedError(f"{type(self).__name__} must define `compared`.")

    def rounds_of_groups(self, heads, positions):
        """Returns the groups of tokens in each round of a causal call: a list of int32 (B, N, T).

        Args:
            heads: projected queries or keys, float (B, N, T, H).
            positions: int32 (B or 1, T), the positions of the tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `rounds_of_groups`.")

    def new_cache(self, batch_size, max_length):
        num_rounds, num_groups, size = self.sizes_of_rounds
        sizes = self.num_heads, num_groups, at_most(size, max_length), self.key_dim, self.value_dim
        return {f"round_{i}": empty_rings(batch_size, *sizes, self.compute_dtype) for i in range(num_rounds)}

    def fill_cache(self, cache, query, key, value, lengths):
        key = query if key is None else key
        rounds = self.rounds_of_groups(key, ops.arange(shape(key)[2], dtype="int32")[None])
        key = rotate_key(self.position_of_heads, self.compared(query, key)[1])
        return {
            f"round_{number}": fill_rings(cache[f"round_{number}"], key, value, groups, lengths)
            for number, groups in enumerate(rounds)
        }

    def decode_heads(self, query, key, value, cache, index):
        key, position = query if key is None else key, self.position_of_heads
        own = self.rounds_of_groups(query, index[:, None])
        of_keys = own if self.share_qk else self.rounds_of_groups(key, index[:, None])
        query, key = self.compared(query, key)
        key, results, new = rotate_key(position, key, index), [], {}
        for number, (asking, asked) in enumerate(zip(own, of_keys, strict=True)):
            rings = keep_in_group(cache[f"round_{number}"], key, value, asked, index)
            kept = kept_in_group(rings, asking, index)
            options = {"mask_self": self.masks_self_in_decoding, "return_log_sum_exp": True}
            results.append(attend_kept(query, kept, index, position, **options))
            new[f"round_{number}"] = rings
        return combine_attended(results).output, new

    # Decoding across sequences: all keys by group, for each round of groups.

    @property
    def reason_against_crossing(self):
        if self.share_qk:
            return "queries serve as keys"
        if self.selection is None:
            return "with selection=None a call across sequences selects by 'top_k' among all queries"
        return self.reason_against_cache

    def new_cross_cache(self, key, value, key_mask):
        positions = ops.arange(shape(key)[2], dtype="int32")[None]
        rounds, num_groups = self.rounds_of_groups(key, positions), self.sizes_of_rounds[1]
        key = rotate_key(self.position_of_heads, self.compared(key, key)[1])
        if key_mask is not None:
            rounds = [ops.where(key_mask[:, None], groups, num_groups) for groups in rounds]
        return {f"round_{number}": sort_keys(key, value, groups) for number, groups in enumerate(rounds)}

    def decode_heads_across(self, query, cache, index):
        rounds, position = self.rounds_of_groups(query, index[:, None]), self.position_of_heads
        query, _ = self.compared(query, query)
        size, results = self.sizes_of_rounds[2], []
        for number, group in enumerate(rounds):
            kept = kept_band(cache[f"round_{number}"], group, index, size)
            options = {"mask_self": self.masks_self_in_decoding, "return_log_sum_exp": True}
            results.append(attend_kept(query, kept, index, position, **options))
        return combine_attended(results).output

    def get_config(self):
        names = ("selection", "share_qk", "mask_self")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
