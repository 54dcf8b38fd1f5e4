"""A plan names one configuration of an attention; `draw` fills it with numbers and `sparse` hands it to the library."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tests.ops.forms import (
    Columns,
    chunk_attention,
    fixed_attention,
    local_attention,
    local_attention_2d,
    nearest_attention,
    random_clusters,
    separate_attention,
    strided_attention,
    top_k_attention,
)
from tf_sparse_attention.ops import masks as library_masks
from tf_sparse_attention.ops.groups import groups_of, segment_ranks
from tf_sparse_attention.ops.members import best_members
from tf_sparse_attention.ops.positions import Alibi, NoPosition, Relative, Rotary


class Plan(NamedTuple):
    """What a compiled program would be made for: shapes and switches, no numbers.

    `op` is "local", "local_2d", "strided", "fixed", "nearest", "random", "top_k" or "chunks"; `shared` queries are the
    keys too. Chunks have `num_rounds` and `cluster_size` places.
    `causal` is a bool, for top_k "position", "rank" or None. `window` None means blocks. `image`, of local_2d, is an
    `Image`, and `before` and `after` are pairs there. `part`, of strided and fixed, is "local", "far" or "merged".
    `attention_mask` is the shape of that mask, or None. `relative_key` has no value table, `relative_token` counts in
    tokens.
    """

    op: str
    batch: int = 2
    heads: int = 2
    num_queries: int = 12
    num_keys: int = 12
    size: int = 4
    value_size: int = 3
    shared: bool = False
    causal: Any = True
    window: Any = None
    block_size: int = 4
    before: Any = 1
    after: Any = 1
    image: Any = None
    part: str = "merged"
    stride: int = 3
    num_summary: int = 1
    group: int = 0
    num_clusters: int = 3
    cluster_size: int = 3
    num_rounds: int = 1
    mask_self: bool = False
    position: Any = None
    reach: int = 2
    key_mask: bool = False
    segments: bool = False
    attention_mask: Any = None
    return_weights: bool = False
    dtype: str = "float32"


def draw(plan, seed):
    """Returns the numbers of a plan: the dictionary of what is differentiated, that of the rest, the cotangent."""
    rng = np.random.default_rng(seed)
    lead = (plan.batch, plan.heads)
    inputs = {"query": rng.normal(size=(*lead, plan.num_queries, plan.size))}
    if not plan.shared:
        inputs["key"] = rng.normal(size=(*lead, plan.num_keys, plan.size))
    inputs["value"] = rng.normal(size=(*lead, plan.num_keys, plan.value_size))
    if plan.position in ("relative", "relative_key", "relative_token"):
        inputs["key_table"] = rng.normal(size=(2 * plan.reach + 1, plan.size))
    if plan.position == "relative":
        inputs["value_table"] = rng.normal(size=(2 * plan.reach + 1, plan.value_size))
    cotangent = rng.normal(size=(*lead, plan.num_queries, plan.value_size))
    inputs = {name: x.astype(plan.dtype) for name, x in inputs.items()}
    return inputs, _draw_masks(plan, rng), cotangent.astype(plan.dtype)


def _draw_masks(plan, rng):
    masks = {}
    shared = plan.shared or (plan.num_queries == plan.num_keys and rng.random() < 0.5)
    sides = {"query": plan.num_queries, "key": plan.num_keys}
    state = rng.integers(2**32)
    for side, length in sides.items():
        own = np.random.default_rng(state if shared else rng)  # a shared sequence has one mask and one set of documents
        if plan.key_mask:
            masks[side + "_mask"] = _draw_token_mask(own, plan.batch, length)
        if plan.segments:
            masks[side + "_segments"] = _draw_segments(own, plan.batch, length)
    for side, length in sides.items():
        if plan.shared and side == "key":
            continue
        if plan.op == "nearest":
            masks[side + "_clusters"] = rng.integers(plan.num_clusters, size=(plan.batch, plan.heads, length))
        if plan.op == "chunks":
            sizes = plan.num_rounds, plan.batch, plan.heads, length
            masks[side + "_clusters"] = rng.integers(plan.num_clusters, size=sizes)
        if plan.op == "random":
            masks[side + "_clusters"] = random_of_all_heads(plan, length, int(rng.integers(2**31)))
        if plan.op == "top_k":
            scores = rng.normal(size=(plan.batch, plan.heads, length, plan.num_clusters))
            # Rounded scores are often equal: then the token that comes first is taken. Adding 0 makes -0 a 0, since
            # JAX orders -0 before 0.
            masks[side + "_scores"] = (scores if rng.random() < 0.5 else np.round(scores) + 0.0).astype("float32")
    if plan.attention_mask is not None:
        masks["attention_mask"] = rng.random(plan.attention_mask) < rng.choice([0.3, 0.9])
    return {name: x.astype("int32") if x.dtype.kind == "i" else x for name, x in masks.items()}


def random_of_all_heads(plan, length, seed):
    """Returns the library's random clusters, (1, N, T): membership is its own business, the band is not."""
    return np.array(ops.convert_to_numpy(random_clusters(plan.heads, length, plan.num_clusters, seed)))


def _draw_token_mask(rng, batch, length):
    kind = rng.integers(3)
    if kind == 0:
        return np.ones((batch, length), bool)
    if kind == 1:  # padding on the right, rows that are all padding included
        return np.arange(length) < rng.integers(length + 1, size=(batch, 1))
    return rng.random((batch, length)) < 0.7


def _draw_segments(rng, batch, length):
    names = rng.integers(-(2**31), 2**31 - 1, size=4)  # arbitrary ids, in no order
    kind = rng.integers(3)
    if kind == 0:
        return np.full((batch, length), names[0])
    drawn = rng.integers(4, size=(batch, length))
    return names[np.sort(drawn, axis=-1) if kind == 1 else drawn]


def make_position(plan, inputs):
    """Returns the position object of a plan."""
    if plan.position == "rotary":
        return Rotary()
    if plan.position == "alibi":
        return Alibi(plan.heads)
    if plan.position is None:
        return NoPosition()
    return Relative(inputs["key_table"], inputs.get("value_table"), by_token=plan.position == "relative_token")


def sparse(plan, inputs, masks):
    """Returns what the library computes for a plan: the output and the weights or None."""
    masks = {name: ops.convert_to_tensor(x) for name, x in masks.items()}
    get = masks.get
    query, value = inputs["query"], inputs["value"]
    key = query if plan.shared else inputs["key"]
    token_masks = library_masks.TokenMasks(
        query_mask=get("query_mask"),
        key_mask=get("key_mask"),
        attention_mask=library_masks.with_heads(get("attention_mask")),
        query_segments=get("query_segments"),
        key_segments=get("key_segments"),
    )
    common = {
        "causal": plan.causal,
        "masks": token_masks,
        "position": make_position(plan, inputs),
        "return_weights": plan.return_weights,
    }
    if plan.op == "local":
        blocks = plan.block_size, plan.before, plan.after
        return local_attention(query, key, value, *blocks, window=plan.window, **common)[:2]
    if plan.op == "local_2d":
        return local_attention_2d(query, key, value, plan.image, plan.before, plan.after, **common)[:2]
    if plan.op == "strided":
        return strided_attention(query, key, value, plan.stride, plan.part, **common)[:2]
    if plan.op == "fixed":
        columns = Columns(plan.block_size, plan.num_summary, plan.group)
        return fixed_attention(query, key, value, columns, plan.part, **common)[:2]
    common["mask_self"] = plan.mask_self
    if plan.op == "top_k":
        queries = best_members(get("query_scores"), plan.cluster_size, get("query_mask"))
        keys = queries if plan.shared else best_members(get("key_scores"), plan.cluster_size, get("key_mask"))
        return top_k_attention(query, key, value, queries, keys, **common)
    if plan.op == "chunks":
        groups = rounds_of_groups(plan, get)
        return chunk_attention(query, key, value, *groups, plan.cluster_size, **common)[:2]
    if plan.shared:
        rank = segment_ranks(get("query_segments"))[0] if plan.segments else None
        groups = groups_of(get("query_clusters"), plan.num_clusters, get("key_mask"), rank)
        return nearest_attention(query, value, groups, plan.cluster_size, **common)[:2]
    ranks = segment_ranks(get("query_segments"), get("key_segments")) if plan.segments else (None, None)
    groups = [
        ops.broadcast_to(
            groups_of(get(f"{side}_clusters"), plan.num_clusters, get(f"{side}_mask"), rank),
            (plan.batch, plan.heads, length),
        )
        for side, rank, length in zip(("query", "key"), ranks, (plan.num_queries, plan.num_keys), strict=True)
    ]
    return separate_attention(query, key, value, *groups, plan.cluster_size, **common)[:2]


def rounds_of_groups(plan, get):
    """Returns the groups of queries and of keys, a list of the rounds each, the same one where they are shared."""
    sides = ("query",) if plan.shared else ("query", "key")
    segments = [get(f"{side}_segments") for side in sides]
    ranks = segment_ranks(*segments) if plan.segments else [None] * len(sides)
    found = [
        [groups_of(x, plan.num_clusters, get(f"{side}_mask"), rank) for x in ops.unstack(get(f"{side}_clusters"))]
        for side, rank in zip(sides, ranks, strict=True)
    ]
    return found[0], found[-1]
