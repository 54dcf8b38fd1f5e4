"""Keys with the values of the tokens that came after them."""

import dataclasses
from typing import Any

import keras

from tf_sparse_attention.patterns.caches import CachePolicy
from tf_sparse_attention.patterns.group_band import GroupBand
from tf_sparse_attention.patterns.pattern import Call, Pattern


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Successors(Pattern):
    """Earlier tokens as keys, each with the value of the token after it: "where I was before, what came next".

    An induction head in one layer: where queries serve as keys, a token finds those like it that came before, and reads
    what followed. Query i sees key j if `pattern` would let it see a key of that content at position j + 1, where its
    value comes from: so many earlier tokens as a window or a cluster is large, itself never. Strictly causal, since
    j + 1 <= i. Positions and weights are those of key j. A token is seen only if it and the next one are no padding,
    and of one document; another one keeps its place in the cluster.

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
        return self.pattern.reach + 1

    @property
    def by_content(self) -> bool:
        return self.pattern.by_content

    def cache(self) -> CachePolicy | None:
        return self.pattern.cache()


def _has_lead(pattern: Any) -> bool:
    """Return whether the arrangement of a pattern can have keys one position later."""
    if not isinstance(pattern, Pattern) or pattern.parts or isinstance(pattern, Successors):
        return False
    if pattern.by_content or pattern.queries_choose:
        return isinstance(pattern, GroupBand)
    return pattern.arrange(Call(1, 2, 2, causal=True, lead=-1)).lead == -1
