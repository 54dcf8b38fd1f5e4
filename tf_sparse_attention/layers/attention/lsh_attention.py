"""Hashing attention as a Keras layer."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads
from tf_sparse_attention.layers.attention.groupers import Grouper, HashAxes
from tf_sparse_attention.layers.parts.variables import drawn_seed, random_directions
from tf_sparse_attention.ops.hashing import l2_normalize
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns.hashed import ChunkedRounds, Hashed, HashedChunk
from tf_sparse_attention.patterns.pattern import Known, Pattern, Union
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.types import Config, Shape, Tensor

SELECTIONS = ("band", "chunks")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LSHAttention(AttentionLayer):
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
        use_successor_values: as in `RoutingAttention`, with "band". Default False.
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
        num_heads: int,
        key_dim: int,
        *,
        num_buckets: int,
        bucket_size: int,
        num_rounds: int = 1,
        selection: str = "band",
        share_qk: bool = True,
        mask_self: bool | None = None,
        use_successor_values: bool = False,
        **kwargs: Any,
    ) -> None:
        checks.check_switch("share_qk", share_qk)
        self.share_qk = share_qk  # first, for the checks of heads
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_optional_switch("mask_self", mask_self)
        for name, value in (("num_buckets", num_buckets), ("bucket_size", bucket_size), ("num_rounds", num_rounds)):
            checks.check_count(name, value)
        if num_buckets % 2:
            raise ValueError(f"`num_buckets` must be even. Received: num_buckets={num_buckets}.")
        checks.check_choice("selection", selection, SELECTIONS)
        attention_checks.check_successors(use_successor_values, mask_self)
        if use_successor_values and selection != "band":
            raise ValueError(
                f"`selection` must be 'band' with `use_successor_values`. Received: selection={selection!r}."
            )
        self.num_buckets = num_buckets
        self.bucket_size = bucket_size
        self.num_rounds = num_rounds
        self.selection = selection
        self.mask_self = mask_self
        self.use_successor_values = use_successor_values
        self.seed = drawn_seed(self.seed)
        rounds = [self._round_pattern(number) for number in range(num_rounds)]
        self._pattern = rounds[0] if num_rounds == 1 else Union(tuple(rounds), count_each=True)

    def _round_pattern(self, number: int) -> Pattern:
        if self.selection == "chunks":
            return HashedChunk(self.num_buckets, self.bucket_size, number)
        hashed = Hashed(self.num_buckets, self.bucket_size, number)
        return Successors(hashed) if self.use_successor_values else hashed

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        sizes = self.num_rounds, self.num_key_heads, self.key_dim, self.num_buckets // 2
        self.rotations = random_directions(self, "rotations", sizes)

    @property
    def groupers(self) -> Sequence[Grouper | None]:  # type: ignore[override]  # computed here
        return [HashAxes(self.rotations, number) for number in range(self.num_rounds)]

    def score_inputs(self, query: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor | None]:
        key = query if key is None else key
        return query * self.score_scale, ops.cast(l2_normalize(key), query.dtype)

    def compute_attention(
        self,
        heads: ProjectedHeads,
        masks: TokenMasks,
        causal: bool,
        training: bool = False,
        return_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        attention_checks.check_lengths(heads[0], heads[2])
        if causal and self.selection == "chunks":
            attention_checks.warn_once(
                self,
                "under a causal mask is not causal: which keys share a chunk depends on the whole sequence. Use "
                "selection='band', the default.",
            )
        return super().compute_attention(heads, masks, causal, training, return_weights)

    def describe_tokens(
        self, query: Tensor, key: Tensor | None, masks: TokenMasks, training: bool = False
    ) -> Sequence[Known] | None:
        known = super().describe_tokens(query, key, masks, training)
        if known is None or self.selection == "band":
            return known
        queries = [each[0]["group"] for each in known]
        keys = queries if key is None else [each[1]["group"] for each in known]
        return [ChunkedRounds(queries, keys, self.bucket_size)] * self.num_rounds

    def get_config(self) -> Config:
        names: tuple[str, ...] = ("num_buckets", "bucket_size", "num_rounds", "selection", "share_qk", "mask_self")
        names += ("use_successor_values",)
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
