"""Keys with the values of the tokens that came after them."""

import dataclasses
from typing import Any

import keras

from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.group_band import GroupBand
from tf_sparse_attention.patterns.pattern import Call, Composition, Pattern


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Successors(Pattern):
    """Successor values: key j contributes the value of token j + 1, as in an induction head.

    With shared queries and keys, a query attends to similar earlier tokens and reads what followed them, in one layer.
    Query i attends to key j if `pattern` lets it attend to that key at position j + 1, the position of its value. It is
    strictly causal, since j + 1 <= i, and a query never attends to itself. Rotary positions are those of key j. Key j
    is masked if token j or j + 1 is padding, or if they are in different documents. It still counts in its cluster.

    Args:
        pattern: a `Window` or a pattern of groups, such as `Nearest` or `Hashed`: its arrangement must take a
            `Call.lead` of -1.

    Raises:
        ValueError: for another pattern, and for a call that is not causal.

    Example:
        >>> layer = SparseAttention(num_heads=2, key_dim=8, pattern=Window(4) | Successors(Nearest(2, 4)), seed=0)
        >>> tuple(layer(keras.random.normal((1, 9, 16)), use_causal_mask=True).shape)
        (1, 9, 16)
    """

    pattern: Pattern

    must_be_causal = True

    def __post_init__(self) -> None:
        if not _has_lead(self.pattern):
            raise ValueError(
                "`pattern` must be a pattern whose arrangement takes a `lead` of -1, such as Window or Nearest. Of a "
                f"union, wrap the parts. Received: pattern={self.pattern!r}."
            )

    @property
    def reach(self) -> int:
        return (self.pattern.reach or 0) + 1

    @property
    def content_based(self) -> bool:
        return self.pattern.content_based

    def cache(self) -> CachePolicy:
        return self.pattern.cache()


def _has_lead(pattern: Any) -> bool:
    """Return whether the arrangement of a pattern can have keys one position later."""
    if not isinstance(pattern, Pattern) or isinstance(pattern, Composition | Successors):
        return False
    if pattern.content_based:
        return isinstance(pattern, GroupBand)
    return pattern.arrange(Call(1, 2, 2, causal=True, lead=-1)).lead == -1
