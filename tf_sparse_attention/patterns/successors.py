"""Successor values: each key is paired with the value of the next token, as in an induction head."""

import dataclasses
from typing import Any

import keras

from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.group_band import GroupBand
from tf_sparse_attention.patterns.pattern import Call, Composition, Pattern


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Successors(Pattern):
    """Successor values: key j contributes the value of token j + 1.

    With shared queries and keys, a query attends to similar earlier tokens and reads the tokens that followed them, in
    one layer. Query i attends to key j if `pattern` lets it attend to position j + 1, the position of the value. This
    is strictly causal, because j + 1 <= i. A query never attends to its own position. The rotary position is the
    position of key j. Key j is masked if token j or j + 1 is padding, or if they are in different documents. A masked
    key still counts toward the number of keys of its cluster.

    Args:
        pattern: a `Window` or a `GroupBand`, such as `Nearest` or `Hashed`. The arrangement of this pattern must accept
            a `Call.lead` of -1.

    Raises:
        ValueError: if the arrangement of `pattern` does not accept this `lead`, or if a call is not causal.

    Example:
        >>> layer = SparseAttention(num_heads=2, key_dim=8, pattern=Window(4) | Successors(Nearest(2, 4)), seed=0)
        >>> tuple(layer(keras.random.normal((1, 9, 16)), use_causal_mask=True).shape)
        (1, 9, 16)
    """

    pattern: Pattern

    must_be_causal = True

    def __post_init__(self) -> None:
        if not _accepts_lead(self.pattern):
            raise ValueError(
                "`pattern` must be a pattern whose arrangement accepts a `lead` of -1, such as Window or Nearest. "
                f"Received: pattern={self.pattern!r}. Wrap the parts of a union separately."
            )

    @property
    def reach(self) -> int:
        return (self.pattern.reach or 0) + 1

    @property
    def content_based(self) -> bool:
        return self.pattern.content_based

    def cache(self) -> CachePolicy:
        return self.pattern.cache()


def _accepts_lead(pattern: Any) -> bool:
    if not isinstance(pattern, Pattern) or isinstance(pattern, Composition | Successors):
        return False
    if pattern.content_based:
        return isinstance(pattern, GroupBand)
    return pattern.arrange(Call(1, 2, 2, causal=True, lead=-1)).lead == -1
