"""LSH attention (Reformer)."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention import attention_checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer, ProjectedHeads, head_plans
from tf_sparse_attention.layers.parts.selectors import selector_for_leaf
from tf_sparse_attention.layers.parts.variables import drawn_seed, random_directions
from tf_sparse_attention.ops.hashing import l2_normalize
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns.group_band import GroupSelector
from tf_sparse_attention.patterns.hashed import ChunkSelector, HashAxes, Hashed, HashedChunk
from tf_sparse_attention.patterns.pattern import Pattern, Union
from tf_sparse_attention.patterns.selection import Selector
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.types import Config, Tensor

SELECTIONS = ("band", "chunks")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LSHAttention(AttentionLayer):
    """LSH attention: each query attends to keys of its hash bucket, in O(T bucket_size) per round.

    The bucket of a vector is the nearest of num_buckets / 2 random directions and their opposites. Keys are normalized
    to length 1, and the score is q . k / sqrt(key_dim). With several rounds, each with separate directions, a query
    attends to the union of its buckets. A key counts once for each round in which it shares the query's bucket. Rounds
    are merged by their log-sum-exp. The directions are random and saved with the layer. The assignment to buckets has
    no gradient. Source: Kitaev et al. 2020, "Reformer: The Efficient Transformer".

    `selection` determines which keys a query attends to:

    - "band" (default): the last `bucket_size` keys of the bucket, up to and including the query's position. Without a
      causal mask, also the next `bucket_size` - 1 keys. Under a causal mask, results never depend on later tokens.
    - "chunks": tokens are sorted by (bucket, position) and cut into chunks of `bucket_size`. A query attends to its
      chunk and the previous chunk, regardless of their buckets. The first chunk of a round attends to the last chunk of
      the previous round. Results depend on later tokens, even under a causal mask.

    Note: differs from the paper as follows. The paper has only "chunks", where later tokens determine which keys share
    a chunk. The paper hashes padding; here padding belongs to no chunk. The paper sorts by bucket, this layer by
    (document, bucket). The published code requires lengths divisible by the chunk size; here any length works, and a
    sequence of one chunk gets dense attention.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        num_buckets: K, number of buckets, even. A good default is the sequence length divided by `bucket_size`.
        bucket_size: with "band", keys per side that a query attends to, including the key at its position; with
            "chunks", tokens per chunk.
        num_rounds: R, number of hash rounds. Default 1.
        selection: "band" or "chunks". Default "band".
        share_qk: whether queries, normalized to length 1, are used as keys. The layer then has no key projection.
            Default True.
        mask_self: whether to mask a token's own key, unless the token can attend to no other key in any round. None
            (default): `share_qk`, because with shared queries and keys the token itself has the highest score.
        use_successor_values: as in `RoutingAttention`, only with "band". Default False.
        **kwargs: the other arguments of `AttentionLayer`. With "band", distances of `position="relative"` are
            differences of ranks in the bucket. With "chunks", they are differences of positions. Other position
            encodings use distances in tokens. `seed` also determines the directions.

    Raises:
        ValueError: if an argument is invalid, or if `value` and `query` have different lengths.

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
        self.share_qk = share_qk  # before `super().__init__`, which checks it
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
        kind = HashedChunk if selection == "chunks" else Hashed
        rounds: list[Pattern] = [kind(num_buckets, bucket_size, number) for number in range(num_rounds)]
        if use_successor_values:
            rounds = [Successors(pattern) for pattern in rounds]
        self._pattern = rounds[0] if num_rounds == 1 else Union(tuple(rounds), count_each=True)

    def make_selectors(self) -> list[Selector | None]:
        sizes = self.num_rounds, self.num_key_heads, self.key_dim, self.num_buckets // 2
        self.rotations = random_directions(self, "rotations", sizes)
        selectors = (
            GroupSelector(HashAxes(self.rotations, number), self.num_buckets, self.num_key_heads)
            for number in range(self.num_rounds)
        )
        if self.selection == "chunks":
            rounds = list(selectors)
            return [ChunkSelector(rounds, number, self.bucket_size) for number in range(self.num_rounds)]
        (plan,) = head_plans(self)
        leaves = sorted(plan.leaves, key=lambda leaf: leaf.index)
        return [selector_for_leaf(selector, leaf) for selector, leaf in zip(selectors, leaves, strict=True)]

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
        return super().compute_attention(heads, masks, causal, training, return_weights)

    def get_config(self) -> Config:
        names: tuple[str, ...] = ("num_buckets", "bucket_size", "num_rounds")
        names += ("selection", "share_qk", "mask_self", "use_successor_values")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
