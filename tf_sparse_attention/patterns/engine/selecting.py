"""Running the selectors of content-based patterns on the heads of their leaves."""

from collections.abc import Sequence

from tf_sparse_attention.patterns.engine.plan import HeadPlan, take_heads
from tf_sparse_attention.patterns.selection import Selection, SelectionInputs, Selector


def select_tokens(
    plans: Sequence[HeadPlan], selectors: Sequence[Selector | None], inputs: SelectionInputs
) -> list[Selection | None]:
    """Select for the tokens of a call, by the selector of each leaf.

    Args:
        plans: of `plan_heads`.
        selectors: for each leaf by its index its selector, or None.
        inputs: a `SelectionInputs` of all heads.
    """
    selections: list[Selection | None] = [None] * len(selectors)
    for plan in plans:
        own = inputs_of_heads(plan, inputs)
        for leaf in plan.leaves:
            selector = selectors[leaf.index]
            if selector is not None:
                selections[leaf.index] = selector.select(own)
    return selections


def inputs_of_heads(plan: HeadPlan, inputs: SelectionInputs) -> SelectionInputs:
    """Return the `SelectionInputs` of the heads of a plan."""
    query, rotated_query = (take_heads(x, plan.heads) for x in (inputs.query, inputs.rotated_query))
    key = query if inputs.key is inputs.query else take_heads(inputs.key, plan.key_heads)
    return inputs._replace(
        query=query, key=key, rotated_query=rotated_query, rotated_key=take_heads(inputs.rotated_key, plan.key_heads)
    )
