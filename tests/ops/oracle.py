"""What a plan must come to, computed with the dense twins head by head."""

import functools
from typing import Any, NamedTuple

import numpy as np

from tests.ops import twins


class Part(NamedTuple):
    """Positions that attend among themselves: the whole sequence, or one cluster of top_k.

    Attributes:
        queries: list of t positions.
        keys: list of s positions.
        allowed: bool (t, s), the pattern alone.
        apart: int (t, s), how far apart query and key rank.
        counts: (t, s), how often a query sees a key, or 1: always once.
    """

    queries: Any
    keys: Any
    allowed: Any
    apart: Any
    counts: Any = 1


def parts_of(plan, masks, b, n):
    """Returns the parts that head n of row b consists of."""
    queries, keys = range(plan.num_queries), range(plan.num_keys)
    if plan.op in ("local", "local_2d", "strided", "fixed"):
        allowed = _pattern_of_positions(plan)
        if plan.key_mask:
            allowed = allowed & masks["key_mask"][b]
        return [Part(queries, keys, allowed, np.subtract.outer(keys, queries).T)]
    if plan.op == "top_k":
        asking = _members(plan, masks, "query", b, n)
        answering = asking if plan.shared else _members(plan, masks, "key", b, n)
        return [_cluster(plan, *pair) for pair in zip(asking, answering, strict=True)]
    if plan.op == "chunks":
        counts = twins.chunks(*_rounds_of_groups(plan, masks, b, n), plan.cluster_size)
        allowed = (counts > 0) & (np.greater_equal.outer(queries, keys) | (not plan.causal))
        return [Part(queries, keys, allowed, np.subtract.outer(keys, queries).T, np.maximum(counts, 1))]
    asking = _groups(plan, masks, "query", b, n)
    answering = asking if plan.shared else _groups(plan, masks, "key", b, n)
    return [Part(queries, keys, *twins.bands(asking, answering, plan.cluster_size, plan.causal))]


@functools.lru_cache(maxsize=1)  # the heads and rows of a plan all have the same one
def _pattern_of_positions(plan):
    """Returns where query i may see key j in a pattern of positions alone, bool (T, S)."""
    lengths = plan.num_queries, plan.num_keys
    if plan.op == "local_2d":
        image = plan.image
        blocks = image.block_shape, plan.before, plan.after
        return twins.image_blocks(*lengths, image.width, *blocks, plan.causal, image.order, image.height)
    if plan.op == "strided":
        return twins.strided(*lengths, plan.stride, plan.part, plan.causal)
    if plan.op == "fixed":
        return twins.fixed(*lengths, plan.block_size, plan.num_summary, plan.group, plan.part, plan.causal)
    if plan.window is None:
        return twins.local_blocks(*lengths, plan.block_size, plan.before, plan.after, plan.causal)
    return twins.window(*lengths, plan.window, plan.causal)


def _members(plan, masks, side, b, n):
    scores = masks[side + "_scores"][b, n]
    exists = masks[side + "_mask"][b] if plan.key_mask else np.ones(len(scores), bool)
    return twins.best_members(scores, plan.cluster_size, exists)


def _cluster(plan, queries, keys):
    apart = np.array([[s - t for s in range(len(keys))] for t in range(len(queries))], int)
    apart = apart.reshape(len(queries), len(keys))
    allowed = np.ones(apart.shape, bool)
    if plan.causal == "rank":
        allowed = apart <= 0
    if plan.causal == "position":
        allowed = np.array([[j <= i for j in keys] for i in queries], bool).reshape(apart.shape)
    return Part(queries, keys, allowed, apart)


def _rounds_of_groups(plan, masks, b, n):
    """Returns for queries and for keys the groups of every round."""
    sides = ("query", "query") if plan.shared else ("query", "key")
    return [[_groups(plan, masks, side, b, n, number) for number in range(plan.num_rounds)] for side in sides]


def _groups(plan, masks, side, b, n, number=None):
    """Returns the group of each token: the pair of its document and its cluster, None if it does not exist.

    `number` is that of the round, of an attention that has rounds.
    """
    clusters = masks[side + "_clusters"] if number is None else masks[side + "_clusters"][number]
    groups = [(0, cluster) for cluster in clusters[b % len(clusters), n].tolist()]
    if plan.segments:
        documents = masks[side + "_segments"][b].tolist()
        groups = [(document, cluster) for document, (_, cluster) in zip(documents, groups, strict=True)]
    if plan.key_mask:
        groups = [group if exists else None for group, exists in zip(groups, masks[side + "_mask"][b], strict=True)]
    return groups


def allowed_pairs(plan, masks, b, n, part):
    """Returns which pairs of a part may attend once all masks are merged, bool (t, s)."""
    pairs = np.ix_(list(part.queries), list(part.keys))
    allowed = part.allowed
    if plan.attention_mask is not None:
        mask = masks["attention_mask"]
        mask = mask[:, None] if mask.ndim == 3 else mask  # rank 3 has no axis of heads
        mask = np.broadcast_to(mask, (plan.batch, plan.heads, plan.num_queries, plan.num_keys))
        allowed = allowed & mask[b, n][pairs]
    if plan.segments:
        same = masks["query_segments"][b][:, None] == masks["key_segments"][b]
        allowed = allowed & same[pairs]
    return twins.without_self(allowed, part.queries, part.keys) if plan.mask_self else allowed


def expected(plan, inputs, masks, cotangent):
    """Returns output, weights and gradients of a plan as a dictionary of float64 arrays."""
    inputs = {name: np.asarray(x, "float64") for name, x in inputs.items()}
    inputs.setdefault("key", inputs["query"])
    result = {name: np.zeros_like(x) for name, x in inputs.items()}
    result["output"] = np.zeros((plan.batch, plan.heads, plan.num_queries, plan.value_size))
    result["weights"] = np.zeros((plan.batch, plan.heads, plan.num_queries, plan.num_keys))
    for b in range(plan.batch):
        for n in range(plan.heads):
            parts = parts_of(plan, masks, b, n)
            held = np.zeros(plan.num_queries)  # in how many parts a query is
            for part in parts:
                held[list(part.queries)] += 1
            for part in parts:
                _add_part(plan, inputs, masks, np.float64(cotangent[b, n]), b, n, part, held, result)
    if plan.shared:
        result["query"] += result.pop("key")
    if not plan.return_weights:
        del result["weights"]
    return result


def _add_part(plan, inputs, masks, cotangent, b, n, part, held, result):
    queries, keys = list(part.queries), list(part.keys)
    query, key = inputs["query"][b, n][queries], inputs["key"][b, n][keys]
    tokens = np.array(keys, int)[None, :] - np.array(queries, int)[:, None]
    if plan.position == "rotary":
        query, key = twins.rotate(query, queries), twins.rotate(key, keys)
    apart = tokens if plan.position == "relative_token" else part.apart
    bias = -twins.slopes(plan.heads)[n] * np.abs(tokens) if plan.position == "alibi" else 0.0
    share = 1 / held[queries][:, None]
    attended = twins.attend(
        query,
        key,
        inputs["value"][b, n][keys],
        allowed_pairs(plan, masks, b, n, part),
        cotangent[queries] * share,
        bias=bias + np.log(part.counts),  # what is seen twice weighs twice
        rows=np.clip(apart, -plan.reach, plan.reach) + plan.reach,
        key_table=inputs.get("key_table"),
        value_table=inputs.get("value_table"),
    )
    d_query, d_key = attended.query, attended.key
    if plan.position == "rotary":
        d_query, d_key = twins.rotate(d_query, queries, back=True), twins.rotate(d_key, keys, back=True)
    result["output"][b, n][queries] += attended.output * share
    result["weights"][b, n][np.ix_(queries, keys)] += attended.weights * share
    result["query"][b, n][queries] += d_query
    result["key"][b, n][keys] += d_key
    result["value"][b, n][keys] += attended.value
    for name in ("key_table", "value_table"):
        if name in inputs:
            result[name] += getattr(attended, name)
