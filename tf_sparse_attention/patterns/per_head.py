"""Heads side by side that have patterns of their own."""

import dataclasses
from collections.abc import Sequence

import keras

from tf_sparse_attention.patterns.pattern import Composition, Pattern


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Heads(Composition):
    """Heads side by side: `Heads([(6, Window(256)), (2, Stride(64))])`.

    Args:
        groups: pairs of a number of heads and their pattern, in the order of the heads.

    Raises:
        ValueError: for anything else.
    """

    groups: Sequence[tuple[int, Pattern]]

    def __post_init__(self) -> None:
        listed = isinstance(self.groups, (list, tuple)) and len(self.groups) > 0
        if not listed or not all(_is_group(group) for group in self.groups):
            raise ValueError(
                f"`groups` must be pairs of a positive number of heads and a pattern. Received: groups={self.groups!r}."
            )
        object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))

    @property
    def parts(self) -> tuple[Pattern, ...]:
        return tuple(pattern for _, pattern in self.groups)

    @property
    def num_heads(self) -> int:
        """The heads of all groups together."""
        return sum(count for count, _ in self.groups)

    def slices(self, num_heads: int) -> list[slice]:
        """Returns the slice of the heads that each part has.

        Raises:
            ValueError: unless `num_heads` is the number of heads of all groups.
        """
        if num_heads != self.num_heads:
            raise ValueError(
                f"`num_heads` must be the heads of all groups together, {self.num_heads}. Received: {num_heads}."
            )
        ends = [sum(count for count, _ in self.groups[: i + 1]) for i in range(len(self.groups))]
        return [slice(end - count, end) for (count, _), end in zip(self.groups, ends, strict=True)]


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class InTurn(Composition):
    """Heads that take turns: head h has the pattern number h modulo the number of parts.

    Args:
        parts: patterns, two or more, whose number divides that of the heads.

    Raises:
        ValueError: for anything else.
    """

    parts: Sequence[Pattern]

    def __post_init__(self) -> None:
        listed = isinstance(self.parts, (list, tuple)) and len(self.parts) > 1
        if not listed or not all(isinstance(part, Pattern) for part in self.parts):
            raise ValueError(f"`parts` must be at least two patterns. Received: parts={self.parts!r}.")
        object.__setattr__(self, "parts", tuple(self.parts))

    def slices(self, num_heads: int) -> list[slice]:
        """Returns the slice of the heads that each part has.

        Raises:
            ValueError: unless the number of parts divides `num_heads`.
        """
        if num_heads % len(self.parts):
            raise ValueError(
                f"`num_heads` must be a multiple of the {len(self.parts)} patterns that take turns. "
                f"Received: {num_heads}."
            )
        return [slice(start, num_heads, len(self.parts)) for start in range(len(self.parts))]


def _is_group(group):
    if not isinstance(group, (list, tuple)) or len(group) != 2:
        return False
    count, pattern = group
    return isinstance(count, int) and not isinstance(count, bool) and count > 0 and isinstance(pattern, Pattern)
