"""Different patterns per head."""

import dataclasses
from collections.abc import Sequence

import keras

from tf_sparse_attention.patterns.pattern import HeadComposition, Pattern


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Heads(HeadComposition):
    """Patterns for consecutive groups of heads: `Heads([(6, Window(256)), (2, Stride(64))])`.

    Args:
        groups: pairs of a number of heads and their pattern, in the order of the heads.

    Raises:
        ValueError: if an entry of `groups` is not a pair of a positive integer and a pattern.
    """

    groups: Sequence[tuple[int, Pattern]]

    def __post_init__(self) -> None:
        is_sequence = isinstance(self.groups, (list, tuple)) and len(self.groups) > 0
        if not is_sequence or not all(_is_group(group) for group in self.groups):
            raise ValueError(
                f"`groups` must be pairs of a positive number of heads and a pattern. Received: groups={self.groups!r}."
            )
        object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return tuple(pattern for _, pattern in self.groups)

    @property
    def num_heads(self) -> int:
        """N, the sum over all groups."""
        return sum(count for count, _ in self.groups)

    def slices(self, num_heads: int) -> list[slice]:
        """Return the slice of the heads of each part.

        Raises:
            ValueError: if `num_heads` is not the sum over all groups.
        """
        if num_heads != self.num_heads:
            raise ValueError(
                f"`num_heads` must be {self.num_heads}, the sum over `groups`. Received: num_heads={num_heads}."
            )
        ends = [sum(count for count, _ in self.groups[: i + 1]) for i in range(len(self.groups))]
        return [slice(end - count, end) for (count, _), end in zip(self.groups, ends, strict=True)]


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class InTurn(HeadComposition):
    """Alternating patterns: head h has pattern number h modulo the number of parts.

    Args:
        parts: at least two patterns. The number of parts must divide the number of heads.

    Raises:
        ValueError: if `parts` is not a sequence of at least two patterns.
    """

    parts: Sequence[Pattern]

    def __post_init__(self) -> None:
        is_sequence = isinstance(self.parts, (list, tuple)) and len(self.parts) > 1
        if not is_sequence or not all(isinstance(part, Pattern) for part in self.parts):
            raise ValueError(f"`parts` must be at least two patterns. Received: parts={self.parts!r}.")
        object.__setattr__(self, "parts", tuple(self.parts))

    def slices(self, num_heads: int) -> list[slice]:
        """Return the slice of the heads of each part.

        Raises:
            ValueError: if `num_heads` is not a multiple of the number of parts.
        """
        if num_heads % len(self.parts):
            raise ValueError(
                f"`num_heads` must be a multiple of {len(self.parts)}, the number of `parts`. "
                f"Received: num_heads={num_heads}."
            )
        return [slice(start, num_heads, len(self.parts)) for start in range(len(self.parts))]


def _is_group(group):
    if not isinstance(group, (list, tuple)) or len(group) != 2:
        return False
    count, pattern = group
    return isinstance(count, int) and not isinstance(count, bool) and count > 0 and isinstance(pattern, Pattern)
