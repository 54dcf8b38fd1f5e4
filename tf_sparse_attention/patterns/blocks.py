"""Block-local attention."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.patterns.arrangement import Arrangement, block_grid
from tf_sparse_attention.patterns.cache_policies import CachePolicy, CrossCachePolicy, KeyRange, Ring
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection, TokenInfo
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Blocks(Pattern):
    """The query's block of `size` positions, the `before` blocks before it and the `after` blocks after it. O(T size).

    Source: Roy et al. 2021, section 3.

    Args:
        size: positions per block.
        before: blocks before the query's block. Default 1.
        after: blocks after the query's block, 0 in a causal call. None: `before`.
        key_size: positions per key block in non-causal cross-attention. Block g of the queries is paired with block g
            of the keys. None: `size`.

    Raises:
        ValueError: if an argument is invalid.
    """

    size: int
    before: int = 1
    after: int | None = None
    key_size: int | None = None

    def __post_init__(self) -> None:
        checks.check_count("size", self.size)
        checks.check_count("before", self.before, minimum=0)
        checks.check_optional_count("after", self.after, minimum=0)
        checks.check_optional_count("key_size", self.key_size)

    @property
    def period(self) -> int | None:
        return self.size if self.key_size in (None, self.size) else None

    @property
    def reach(self) -> int:
        return (max(self.before, self._after) + 1) * max(self.size, self.key_size or 0) - 1

    @property
    def can_be_causal(self) -> bool:
        return self.key_size is None  # otherwise positions of queries and keys are not comparable

    @property
    def takes_memory(self) -> bool:
        return self.can_be_causal

    @property
    def _after(self) -> int:
        return self.before if self.after is None else self.after

    def visible(self, query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
        offset = key.position // (self.key_size or self.size) - query.position // self.size
        return offset >= -self.before, offset <= self._after

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        lengths, num_blocks = (call.query_length, call.key_length), (self.before, self._after)
        return block_grid(*lengths, self.size, *num_blocks, call.causal, call.lead, self.key_size)

    def cache(self) -> CachePolicy:
        return super().cache() if self.key_size is not None else Ring((self.before + 1) * self.size)

    def cross_cache(self) -> CrossCachePolicy:
        size = self.key_size or self.size
        num_keys = (self.before + 1 + self._after) * size
        return KeyRange(lambda index: (index // self.size - self.before) * size, num_keys)
