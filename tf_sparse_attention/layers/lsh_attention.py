"""Hashing attention as a Keras layer."""

import functools

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers import attention_checks
from tf_sparse_attention.layers.content_attention import ContentAttention
from tf_sparse_attention.layers.state import random_directions
from tf_sparse_attention.ops import lsh
from tf_sparse_attention.ops.attend import combine_attended
from tf_sparse_attention.ops.lsh_chunks import chunk_attention
from tf_sparse_attention.ops.masks import chunk_mask, dense_mask, group_band_mask, self_only_when_alone

SELECTIONS = ("band", "chunks")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LSHAttention(ContentAttention):
    """Multi-head attention inside hash buckets, in O(T bucket_size) for each round (Kitaev et al. 2020, "Reformer").

    A vector belongs to the axis, of num_buckets / 2 random ones and their opposites, that it is nearest to. Keys have
    length 1; the score is q . k / sqrt(key_dim). With several rounds of other axes a query sees what any of them shows
    it, a key as often as they do; results are merged by their log-sum-exp. The axes are drawn once and saved with the
    layer; no gradient flows into the choice of buckets.

    `selection`: "band": a query sees the last `bucket_size` keys of its own bucket up to its position, itself included,
    and if not causal the `bucket_size` - 1 next ones. Causal by construction. "chunks": the tokens by (bucket,
    position) are cut into chunks of `bucket_size`; a query sees its chunk and the one before, whatever their buckets,
    the first one of a round the last one of the round before. Not causal, whatever the mask.

    Note: differs from the paper, whose only selection is "chunks": which keys share a chunk depends on later tokens. It
    hashes padding, which takes no place here, and sorts by bucket alone, here by (document, bucket); its code wants
    lengths of whole chunks, here any works, and a sequence of one chunk sees all of itself.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_buckets: K, an even number; the sequence length over `bucket_size` is a good start.
        bucket_size: keys of its bucket that a query sees on a side, counting itself; tokens of a chunk.
        num_rounds: R, default 1.
        selection: "band" or "chunks". Default "band".
        share_qk: whether queries serve as keys, made to length 1. No key projection exists then. Default True.
        mask_self: whether a token sees itself only when it sees nothing else in any round. None: where queries serve as
            keys, since a token would otherwise see little but itself.
        **kwargs: the other arguments of `AttentionLayer`. `position="relative"` goes by rank in the bucket, in chunks
            by token, as the others do. `seed` draws the axes too.

    Raises:
        ValueError: for a wrong argument, and for a value of another length than the query.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = LSHAttention(num_heads=4, key_dim=16, num_buckets=16, bucket_size=64, num_rounds=2)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        *,
        num_buckets,
        bucket_size,
        num_rounds=1,
        selection="band",
        share_qk=True,
        mask_self=None,
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, selection=selection, share_qk=share_qk, mask_self=mask_self, **kwargs)
        for name, value in (("num_buckets", num_buckets), ("bucket_size", bucket_size), ("num_rounds", num_rounds)):
            checks.check_count(name, value)
        if num_buckets % 2:
            raise ValueError(f"`num_buckets` must be even. Received: num_buckets={num_buckets}.")
        checks.check_choice("selection", selection, SELECTIONS)
        self.num_buckets = num_buckets
        self.bucket_size = bucket_size
        self.num_rounds = num_rounds

    @property
    def causal_selection(self):
        """Whether, under a causal mask, which keys a query sees is independent of later tokens."""
        return self.selection == "band"

    @property
    def reach(self):
        return self.bucket_size - 1

    def build(self, query_shape, value_shape=None, key_shape=None, segment_ids_shape=None):
        super().build(query_shape, value_shape, key_shape)
        sizes = self.num_rounds, self.num_heads, self.key_dim, self.num_buckets // 2
        self.rotations = random_directions(self, "rotations", sizes)

    def attend_heads(self, query, key, value, masks, causal, training, return_weights):
        attention_checks.check_lengths(query, value)
        key = query if self.share_qk else key
        groups = self._groups(query, key, masks)
        heads = *self.compared(query, key), value
        options = {
            "causal": causal,
            "mask_self": self._masks_self,
            "masks": masks,
            "position": self.position_of_heads,
            "return_weights": return_weights,
        }
        if self.selection == "chunks":
            if causal:
                self.warn_of_causal_mask("which keys share a chunk", instead="band")
            options["dropout"] = self.dropout_of_weights(training)
            attended = chunk_attention(*heads, *zip(*groups, strict=True), self.bucket_size, **options)
            return attended.output, attended.weights
        options["return_log_sum_exp"] = self.num_rounds > 1
        rounds = [
            self.attend_bands(*heads, pair, self.bucket_size, dropout=self.dropout_of_weights(training), **options)
            for pair in groups
        ]
        # A token that sees itself alone in a round leaves the word to the others: its score there is the lowest.
        attended = combine_attended(rounds)
        return attended.output, attended.weights

    @property
    def _masks_self(self):
        return self.share_qk if self.mask_self is None else self.mask_self

    def _groups(self, query, key, masks):
        """Returns the groups of queries and keys in each round, see `groups_of_tokens`."""
        rotations = ops.convert_to_tensor(self.rotations)
        return self.groups_of_tokens(lambda x: lsh.buckets(x, rotations), query, key, self.num_buckets, masks)

    @property
    def reason_against_cache(self):
        return None if self.selection == "band" else "which keys share a chunk depends on later tokens"

    @property
    def sizes_of_rounds(self):
        return self.num_rounds, self.num_buckets, self.bucket_size

    @property
    def masks_self_in_decoding(self):
        return self._masks_self

    def compared(self, query, key):
        return query * self.key_dim**-0.5, ops.cast(lsh.unit(key), query.dtype)

    def rounds_of_groups(self, heads, positions):
        return lsh.buckets(heads, ops.convert_to_tensor(self.rotations))

    def pattern(self, query, key, masks, causal):
        groups = self._groups(query, query if self.share_qk else key, masks)
        query_mask = masks.key_mask if self.share_qk else masks.query_mask
        exist = [None if mask is None else mask[:, None] for mask in (query_mask, masks.key_mask)]
        if self.selection == "chunks":
            seen = chunk_mask(*zip(*groups, strict=True), self.bucket_size, causal, *exist)
        else:
            bands = [group_band_mask(*pair, self.bucket_size, causal, exist[1]) for pair in groups]
            seen = functools.reduce(ops.logical_or, bands)
        seen = dense_mask(seen, masks)
        return self_only_when_alone(seen) if self._masks_self else seen

    def get_config(self):
        names = ("num_buckets", "bucket_size", "num_rounds")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
