"""Hash buckets of tokens."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.ops.arrangement import Numbers
from tf_sparse_attention.ops.chunks import ChunkedRounds, ChunkGrid
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.groups import GroupBand, check_sizes
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Hashed(GroupBand):
    """The last `bucket_size` keys of the query's own hash bucket, causal by construction.

    The bucket of a vector is the one of num_buckets / 2 random axes and their opposites that it is nearest to. Several
    rounds of other axes are a union: `Hashed(16, 64) | Hashed(16, 64, round=1)`. Source: Kitaev et al. 2020.

    Args:
        num_buckets: K, an even number.
        bucket_size: w, keys of its bucket that a query sees on a side, counting itself.
        round: number of the round, from 0; each has axes of its own. Default 0.

    Raises:
        ValueError: for a wrong argument.
    """

    num_buckets: int
    bucket_size: int
    round: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "num_buckets", "bucket_size")
        checks.check_count("round", self.round, minimum=0)
        if self.num_buckets % 2:
            raise ValueError(f"`num_buckets` must be even. Received: num_buckets={self.num_buckets}.")

    @property
    def num_groups(self) -> int:
        return self.num_buckets

    @property
    def band(self) -> int:
        return self.bucket_size


@dataclasses.dataclass(frozen=True)
class HashedChunk(Pattern):
    """The query's chunk of the tokens sorted by bucket, and the chunk before; never causal (Kitaev et al. 2020).

    Chunk 0 of a round looks back to the last chunk of the round before, that of round 0 to the last of all. Which keys
    share a chunk depends on the whole sequence. What is known of the tokens is an `ops.chunks.ChunkedRounds`.

    Any length works: the last chunk of a round may hold fewer tokens, and padding comes after it and is
    no key. A sequence of one chunk sees each key twice, which is as if once.

    Note: differs from the published code, where padding is hashed, takes slots and pushes tokens into other chunks; and
    where queries are the keys. Keys of their own are sorted by their own groups, and chunk c of the queries sees
    the chunks c and c - 1 of the keys (as in Daras et al. 2020, "SMYRF").

    Args:
        num_buckets: K.
        chunk_size: w, tokens of a chunk.
        round: number of the round.
    """

    num_buckets: int
    chunk_size: int
    round: int = 0

    by_content = True
    causal_selection = False

    @property
    def num_groups(self) -> int:
        """How many buckets there are."""
        return self.num_buckets

    @property
    def reach(self) -> int:
        return self.chunk_size - 1

    def visible(self, query: Place, key: Place) -> tuple[Tensor, ...]:
        back = query.chunk - key.chunk
        round_before = query.chunk + 1 - key.is_last == 0  # chunk 0 and the last one, which LiteRT has no `&` for
        return (back == 0) | (back == 1) | round_before, key.exists == 1, query.exists == 1

    def arrange(self, call: Call, known: Known = None) -> ChunkGrid:
        return known.grid(self.round)

    def describe(self, known: ChunkedRounds) -> Numbers:
        return known.numbers(self.round)

    def cache_unsupported_reason(self) -> str | None:
        return "which keys share a chunk depends on later tokens"
