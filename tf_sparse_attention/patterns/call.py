"""A call of attention: what a pattern has to know of it to arrange its tokens."""

from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import TokenMasks, query_and_key_starts
from tf_sparse_attention.types import Size, Tensor

if TYPE_CHECKING:
    from tf_sparse_attention.patterns.pattern import Pattern

# What is known of tokens beside their positions: the `Numbers` of their groups; in their place some patterns take an
# `ops.chunks.ChunkedRounds`, an `ops.global_tokens.GlobalTokens`, an `ops.member_blocks.ChosenKeys` or a pair of
# `ops.members.Members`. None of a pattern that goes by positions.
Known: TypeAlias = Any


class Call(NamedTuple):
    """What an arrangement has to know of a call.

    Attributes:
        batch: B, an integer or a scalar tensor; so are the two lengths.
        query_length: T.
        key_length: S.
        causal: whether later keys are hidden.
        lead: keys before the position of the first query, an integer: those of earlier text; -1 where key j is at
            position j + 1, see `Successors`. An arrangement takes it over.
        starts: pair of int (B, 1, T) and (B, 1, S), where the document of each token begins; None: all at 0.
        group_size: heads beside each other that share keys and values, N / M, of the heads that are arranged.
    """

    batch: Size
    query_length: Size
    key_length: Size
    causal: bool = False
    lead: int = 0
    starts: tuple[Tensor, Tensor] | None = None
    group_size: int = 1

    @classmethod
    def of(cls, pattern: "Pattern", query: Tensor, key: Tensor, causal: bool, masks: TokenMasks) -> Self:
        """Returns the call of a pattern with queries (B, N, T, H), keys (B, M, S, H) and `TokenMasks`.

        Raises:
            ValueError: for more positions than the pattern's `max_length`, and for a call that is not causal of a
                pattern of which a part must be.
        """
        for leaf in pattern.leaves():
            if leaf.must_be_causal:
                check_causal(type(leaf).__name__, causal)
        (batch, _, query_length, _), key_length = shape(query), shape(key)[2]
        check_length(pattern, "query", query_length)
        check_length(pattern, "value", key_length - masks.num_memory)
        starts = query_and_key_starts(masks) if pattern.uses_starts else None
        return cls(batch, query_length, key_length, causal, masks.num_memory, starts)


def check_causal(name: str, causal: bool) -> None:
    """Raises a `ValueError` unless a call is causal of a pattern or layer, called `name`, for such calls alone."""
    if not causal:
        raise ValueError(
            f"`use_causal_mask` must be True with {name}, which is for causal self-attention alone. "
            "Received: use_causal_mask=False."
        )


def check_length(pattern: "Pattern", name: str, length: Size) -> None:
    """Raises a `ValueError` if a number of positions, as far as it is known, is more than a pattern takes.

    Args:
        pattern: a `Pattern`.
        name: what has so many positions, as the message names it.
        length: an integer; a scalar tensor is not checked.
    """
    if pattern.max_length is not None and isinstance(length, int) and length > pattern.max_length:
        raise ValueError(
            f"`{name}` must be of at most {pattern.max_length} positions, as many as the pattern takes. "
            f"Received: {length} positions, {pattern}."
        )
