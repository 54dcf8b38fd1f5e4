"""What queries choose among keys by themselves: once both are turned by positions, and not before."""

from collections.abc import Iterator, Sequence

from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns.engine.plan import HeadPlan, Leaf, plan_heads, take_heads
from tf_sparse_attention.patterns.engine.slots import Cache, cache_policy, entry_name
from tf_sparse_attention.patterns.pattern import Known, Pattern
from tf_sparse_attention.patterns.token_info import Place
from tf_sparse_attention.types import Tensor


def with_choices(
    pattern: Pattern, known: Sequence[Known] | None, query: Tensor, key: Tensor, masks: TokenMasks
) -> Sequence[Known]:
    """Returns what is known of the tokens of a call, with the choices of queries in patterns where `queries_choose`.

    Args:
        pattern: a `Pattern`.
        known: as in `attend_pattern`.
        query: (B, N, T, H), turned by positions.
        key: (B, M, S, H), likewise.
        masks: a `TokenMasks`.
    """
    found = [None] * len(pattern.leaves()) if known is None else list(known)
    for plan, leaf in _choosing(plan_heads(pattern, query.shape[1], key.shape[1])):
        own = take_heads(query, plan.heads), take_heads(key, plan.key_heads)
        found[leaf.index] = leaf.pattern.choose(*own, masks)
    return found


def choices_of_next(
    plans: Sequence[HeadPlan], cache: Cache, query: Tensor, index: Tensor
) -> dict[int, dict[str, Tensor]]:
    """Returns what the query of the next token chose, (B, n) by name, for each such leaf by its index.

    Args:
        plans: of `plan_heads`.
        cache: after the token.
        query: (B, N, 1, H), turned by positions.
        index: int32 (B,), the position of the token.
    """
    return {
        leaf.index: cache_policy(leaf).choose(
            cache[entry_name(leaf)], take_heads(query, plan.heads), Place(index[:, None])
        )
        for plan, leaf in _choosing(plans)
    }


def _choosing(plans: Sequence[HeadPlan]) -> Iterator[tuple[HeadPlan, Leaf]]:
    return ((plan, leaf) for plan in plans for leaf in plan.leaves if leaf.pattern.queries_choose)
