"""Blocks of positions."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.patterns.arrangement import Arrangement, block_grid
from tf_sparse_attention.patterns.cache_policies import CachePolicy, CrossCachePolicy, Ring, Run
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection
from tf_sparse_attention.patterns.token_info import TokenInfo
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Blocks(Pattern):
    """The query's own block of `size` positions, the `before` ones before it and the `after` ones after it. O(T size).

    Source: Roy et al. 2021, section 3.

    Args:
        size: positions of a block.
        before: blocks before the own one. Default 1.
        after: blocks after the own one, none of which a causal call shows. None: as many as before.
        key_size: positions of a block of keys that are another sequence, whose block g goes with block g of the
            queries; not in a causal call. None: `size`.

    Raises:
        ValueError: for a wrong argument.
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
        return self.key_size is None  # else the positions of queries and keys cannot be compared

    @property
    def takes_memory(self) -> bool:
        return self.key_size is None  # else blocks of memory and blocks of queries would not go together

    @property
    def _after(self) -> int:
        return self.before if self.after is None else self.after

    def visible(self, query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
        ahead = key.position // (self.key_size or self.size) - query.position // self.size
        return ahead >= -self.before, ahead <= self._after

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        around = self.before, self._after
        lengths = call.query_length, call.key_length
        return block_grid(*lengths, self.size, *around, call.causal, call.lead, self.key_size)

    def cache(self) -> CachePolicy:
        return super().cache() if self.key_size is not None else Ring((self.before + 1) * self.size)

    def cross_cache(self) -> CrossCachePolicy:
        size = self.key_size or self.size
        width = (self.before + 1 + self._after) * size
        return Run(lambda index: (index // self.size - self.before) * size, width)
