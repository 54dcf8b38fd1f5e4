"""Advice on poor use of clusters and adaptive spans."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tf_sparse_attention.analysis.health import RoutedHead, Spans

# Fractions from which a value counts as a problem.
DEAD, OVERFULL, DROPPED = 0.25, 0.75, 0.001
FIRST_OR_DROPPED = 0.1  # with successor values, where the first token of each cluster sees no key
LOWEST_ENTROPY = 0.6
LONG, SHORT = 0.95, 0.5  # of the window


def advise(heads: Sequence["RoutedHead"], spans: Iterable["Spans"]) -> list[str]:
    """Return one sentence per problem and layer."""
    advice = []
    for layer in dict.fromkeys(head.layer for head in heads):
        advice += _of_routing(layer, [head for head in heads if head.layer == layer])
    for own in spans:
        if min(own.spans) >= LONG * own.window:
            advice.append(f"{own.layer}: every span reaches the `window` of {own.window}: use a larger `window`.")
        elif max(own.spans) <= SHORT * own.window:
            advice.append(
                f"{own.layer}: the longest span is {max(own.spans)} of {own.window} positions: call "
                "`Model.shrink_windows` to save time."
            )
    return advice


def _of_routing(layer, heads):
    dropped = np.mean([head.dropped for head in heads])
    if dropped >= (FIRST_OR_DROPPED if heads[0].reads_successors else DROPPED):
        yield f"{layer}: {dropped:.1%} of tokens attend to nothing, averaged over heads: {_why_dropped(heads[0])}."
    dead = np.mean([head.dead / head.num_clusters for head in heads])
    if dead >= DEAD:
        yield (
            f"{layer}: {dead:.0%} of the clusters have no tokens: reduce `num_clusters` or `revive_after`, or use "
            "`start_from_data`."
        )
    entropy = min(head.entropy for head in heads)
    if dead < DEAD and entropy < LOWEST_ENTROPY:
        yield f"{layer}: few clusters have most tokens (entropy {entropy:.2f}): use `start_from_data`."
    overfull = np.mean([head.overfull for head in heads])
    if overfull >= OVERFULL:
        what = "only the latest are seen" if heads[0].selection == "nearest" else "only the highest-scoring are kept"
        yield (
            f"{layer}: {overfull:.0%} of the tokens are in clusters with more than `cluster_size`="
            f"{heads[0].cluster_size} tokens ({what}): increase `num_clusters` or `cluster_size`."
        )


def _why_dropped(head):
    if head.reads_successors:
        return "they are masked, or the first token of a cluster: reduce `num_clusters`"
    has_a_key = head.selection in ("nearest", "top_keys")
    return "they are masked" if has_a_key else 'selection="nearest" drops no tokens'
