"""What to do about clusters and spans that are used badly."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tf_sparse_attention.analysis.health import RoutedHead, Spans

# From these shares on something is amiss.
DEAD, OVERFULL, DROPPED = 0.25, 0.75, 0.001
FIRST_OR_DROPPED = 0.1  # where the first token of each cluster has nothing to see
LOWEST_ENTROPY = 0.6
LONG, SHORT = 0.95, 0.5  # of the window


def advise(heads: Sequence["RoutedHead"], spans: Iterable["Spans"]) -> list[str]:
    """Return sentences, one a fault and layer."""
    advice = []
    for layer in dict.fromkeys(head.layer for head in heads):
        advice += _of_routing(layer, [head for head in heads if head.layer == layer])
    for own in spans:
        if min(own.spans) >= LONG * own.window:
            advice.append(f"{own.layer}: every span is as long as `window`, {own.window}: take a larger one.")
        elif max(own.spans) <= SHORT * own.window:
            advice.append(
                f"{own.layer}: the longest span is {max(own.spans)} of {own.window} positions: `Model.shrink_windows` "
                "saves the time of the rest."
            )
    return advice


def _of_routing(layer, heads):
    dropped = np.mean([head.dropped for head in heads])
    if dropped >= (FIRST_OR_DROPPED if heads[0].reads_successors else DROPPED):
        yield f"{layer}: {dropped:.1%} of the pairs of head and token attend to nothing: {_why_dropped(heads[0])}."
    dead = np.mean([head.dead / head.num_clusters for head in heads])
    if dead >= DEAD:
        yield (
            f"{layer}: {dead:.0%} of the clusters have no token: take fewer `num_clusters`, let `revive_after` be a "
            "smaller number, or begin with `start_from_data`."
        )
    entropy = min(head.entropy for head in heads)
    if dead < DEAD and entropy < LOWEST_ENTROPY:
        yield f"{layer}: most tokens are in few clusters (entropy {entropy:.2f}): begin with `start_from_data`."
    overfull = np.mean([head.overfull for head in heads])
    if overfull >= OVERFULL:
        what = "only the last of them are seen" if heads[0].selection == "nearest" else "only the best of them are kept"
        yield (
            f"{layer}: {overfull:.0%} of the tokens are in clusters of more than `cluster_size`, "
            f"{heads[0].cluster_size}, tokens, where {what}: take more `num_clusters` or a larger `cluster_size`."
        )


def _why_dropped(head):
    if head.reads_successors:
        return "they are masked, or the first of their cluster: take fewer `num_clusters`"
    has_a_key = head.selection in ("nearest", "top_keys")
    return "they are masked" if has_a_key else 'selection="nearest" leaves out none'
