"""Sliding-window attention."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.patterns.arrangement import Arrangement, window_grid
from tf_sparse_attention.patterns.cache_policies import CachePolicy, CrossCachePolicy, KeyRange, Ring
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection, TokenInfo
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Window(Pattern):
    """Sliding window: |i - j| < size, or 0 <= i - j < size in a causal call. O(T size).

    Args:
        size: positions on each side, including the query's own position.

    Raises:
        ValueError: if `size` is not a positive integer.
    """

    size: int
    period = 1
    takes_memory = True

    def __post_init__(self) -> None:
        checks.check_count("size", self.size)

    @property
    def reach(self) -> int:
        return self.size - 1

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        return abs(key.position - query.position) < self.size

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return window_grid(call.query_length, call.key_length, self.size, call.causal, call.lead)

    def cache(self) -> CachePolicy:
        return Ring(self.size)

    def cross_cache(self) -> CrossCachePolicy:
        return KeyRange(lambda index: index - self.size + 1, 2 * self.size - 1)
