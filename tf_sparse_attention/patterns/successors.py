"""Keys with the values of the tokens that came after them."""

import dataclasses
from typing import cast

import keras

from tf_sparse_attention.ops.arrangement import Arrangement, Numbers
from tf_sparse_attention.ops.blocks import shift_left, shift_right
from tf_sparse_attention.ops.groups import NO_GROUP
from tf_sparse_attention.patterns.caches import CachePolicy
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


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
        pattern: a `Window`, or a pattern in which content decides, as `Nearest` or `Hashed`.

    Raises:
        ValueError: for another pattern, and for a call that is not causal.

    Example:
        >>> layer = SparseAttention(num_heads=2, key_dim=8, pattern=Window(4) | Successors(Nearest(2, 4)), seed=0)
        >>> tuple(layer(keras.random.normal((1, 9, 16)), use_causal_mask=True).shape)
        (1, 9, 16)
    """

    pattern: Pattern

    reads_successors = True
    must_be_causal = True

    def __post_init__(self) -> None:
        if not getattr(self.pattern, "takes_successors", False):
            raise ValueError(
                "`pattern` must be a Window, a pattern in which content decides, as Nearest or Hashed, or one of your "
                "own with `takes_successors`; of a union wrap the parts. "
                f"Received: pattern={self.pattern!r}."
            )

    @property
    def rule(self) -> Pattern:
        return self.pattern

    @property
    def period(self) -> int | None:
        return self.pattern.period

    @property
    def reach(self) -> int:
        return self.pattern.reach + 1

    @property
    def by_content(self) -> bool:
        return self.pattern.by_content

    @property
    def num_groups(self) -> int:
        return self.pattern.num_groups

    @property
    def in_span(self) -> bool:  # type: ignore[override]  # computed, where others keep it
        return self.pattern.in_span

    def visible(self, query: Place, key: Place) -> Tensor | tuple[Tensor, ...]:
        return self.pattern.visible(query, key)

    def arrange(self, call: Call, known: Known = None) -> Arrangement:
        arrangement = self.pattern.arrange(_a_position_later(call), known)
        if not isinstance(arrangement, Arrangement) or arrangement.lead != -1:  # a token would see what comes after it
            raise ValueError(
                "`pattern` must pass `call.lead` on to its arrangement, as its `lead`, if it says `takes_successors`. "
                f"Received: pattern={self.pattern!r}."
            )
        return arrangement

    def describe(self, known: Known) -> Numbers | None:
        if known is None:
            return None
        later = known[0], {"group": shift_right(known[1]["group"], -1, NO_GROUP)}
        queries, keys = cast(Numbers, self.pattern.describe(later))
        return queries, {name: shift_left(x, -1) for name, x in keys.items()}

    def dense(self, call: Call, known: Known = None) -> Tensor:
        return super().dense(_a_position_later(call), known)

    def cache(self) -> CachePolicy | None:
        return self.pattern.cache()


def _a_position_later(call: Call) -> Call:
    """Returns a call whose keys are where their values come from."""
    return call._replace(lead=-1)
