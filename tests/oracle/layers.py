"""The attention layers by the book: NumPy, float64, one head of one sequence after the other.

Reads the weights of a layer by name and computes what its docstring says, with the patterns of `definitions.py` and
the attention of `attention.py`. Nothing of the library's own arithmetic is used.
"""

import dataclasses
from typing import Any, NamedTuple

import keras
import numpy as np

from tests.oracle import attention, compositions, definitions
from tests.oracle.clustered import clustered
from tf_sparse_attention import layers
from tf_sparse_attention.ops.random_bits import random_groups
from tf_sparse_attention.patterns import Hashed, RetrievedClusters, SelectedBlocks, TopKeys
from tf_sparse_attention.patterns.pattern import primitives

OF_ALL_TOKENS = ("top_k", "strided", "hash")  # selections of routing attention that look at the whole sequence
# Names of parents of weights whose own name says too little.
PARENTS = ("query", "key", "value", "query_norm", "key_norm", "gate", "attention_output", "clusters_")
PARENTS += ("branch_gate", "window_", "compressed_", "global_query", "global_key", "global_value")


class Dense(NamedTuple):
    """Output (B, T, ...), weights (B, N, T, S) and pattern, bool (B, N, T, S)."""

    output: Any
    weights: Any
    pattern: Any


@dataclasses.dataclass
class Head:
    """One head of one sequence: projected (T, H), (S, H), (S, Hv), and what the masks say about them."""

    layer: Any
    weights: dict
    index: int
    causal: bool
    query: Any
    key: Any
    value: Any
    query_exists: Any
    key_exists: Any
    allowed: Any  # by the attention mask and the segments, (T, S)
    segments: Any  # of the tokens, (T,), or None
    queries: Any  # of all heads, (N, T, H)
    inputs: Any  # of the queries, (T, D)
    allowed_of_heads: Any  # what `allowed` is of all heads, (N, T, S)
    marks: Any  # how often each token counts as a global one, (S,)


def as_array(weight):
    return np.asarray(keras.ops.convert_to_numpy(weight), "float64")


def arrays_of(layer, read):
    """Return the weights of a layer by the end of their path: "query/kernel", "relative_key" ..."""
    found = {}
    for weight in layer.weights:
        *_, parent, name = weight.path.split("/")
        found[f"{parent}/{name}" if parent.startswith(PARENTS) else name] = read(weight)
    return found


def dense_call(layer, query, value=None, key=None, causal=False, read=as_array, **masks):
    """Return the `Dense` result of calling a built attention layer, without dropout, with weights as `read` has them.

    Arguments are those of the call. Masks: `query_mask` (B, T), `key_mask` (B, S), `attention_mask` (B, N, T, S),
    `segment_ids` (B, T), `global_mask` (B, S).
    """
    if isinstance(layer, layers.MixedAttention):
        return _mixed(layer, query, value, key, causal, read, **masks)
    results = []
    weights = arrays_of(layer, read)
    source = query if value is None else value
    queries, values = _project(weights, "query", query), _values(layer, weights, source)
    queries = _normed(layer, weights, "query", queries)
    keys = queries
    if "key/kernel" in weights:
        keys = _normed(layer, weights, "key", _project(weights, "key", source if key is None else key))
    for b in range(len(query)):
        exists = _masks_of(masks, b, len(query[0]), len(source[0]), value is None)
        marks = np.zeros(len(source[0])) if masks.get("global_mask") is None else masks["global_mask"][b]
        every = np.ones((layer.num_heads, len(query[0]), len(source[0])), bool)
        every = every if masks.get("attention_mask") is None else every & masks["attention_mask"][b]
        every = every if exists[2] is None else every & (exists[2][:, None] == exists[2])
        for h in range(layer.num_heads):
            own = [x[b, min(_key_head(layer, h), x.shape[1] - 1)] for x in (keys, values)]  # some heads may have none
            sides = *own, *exists[:2], every[h], exists[2], queries[b], query[b], every, marks
            head = Head(layer, weights, h, causal, queries[b, h], *sides)
            results.append([part * head.query_exists[:, None] for part in CASES[type(layer)](head)])
    shape = (len(query), layer.num_heads)
    output, probabilities, pattern = (np.reshape(x, shape + np.shape(x)[1:]) for x in zip(*results, strict=True))
    if "gate/kernel" in weights:
        output = output / (1 + np.exp(-_project(weights, "gate", query)))
    output = np.tensordot(output, weights["attention_output/kernel"], axes=((1, 3), (0, 1)))
    return Dense(output + weights.get("attention_output/bias", 0.0), probabilities, pattern)


def _normed(layer, weights, name, x):
    """Return queries or keys divided by their root mean square, if the layer does that."""
    if f"{name}_norm/scale" not in weights:
        return x
    epsilon = layer.head_settings.query_key_norm_epsilon
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + epsilon) * weights[f"{name}_norm/scale"]


def _values(layer, weights, x, name="value"):
    """Return values, divided by their root mean square if the layer does that."""
    values = _project(weights, name, x)
    if not layer.head_settings.use_value_norm:
        return values
    return values / np.sqrt(np.mean(values**2, -1, keepdims=True) + layer.head_settings.query_key_norm_epsilon)


def _slope(head):
    slopes = head.layer.head_settings.alibi_slopes
    return (attention.slopes(head.layer.num_heads) if slopes is None else slopes)[head.index]


def _key_head(layer, head):
    """Return the number of the head that has the keys of a query head."""
    return head // (layer.num_pattern_heads // layer.num_key_heads)


def _group(head):
    """Return the slice of the heads that have the same keys."""
    size = head.layer.num_pattern_heads // head.layer.num_key_heads
    first = head.index // size * size
    return slice(first, first + size)


def _mixed(layer, query, value, key, causal, read, attention_mask=None, **masks):
    results, first = [], 0
    for part in layer.parts:
        own = None if attention_mask is None else attention_mask[:, first : first + part.num_heads]
        results.append(dense_call(part, query, value, key, causal, read, attention_mask=own, **masks))
        first += part.num_heads
    outputs, weights, patterns = zip(*results, strict=True)
    return Dense(sum(outputs), np.concatenate(weights, 1), np.concatenate(patterns, 1))


def _project(weights, name, x):
    heads = np.einsum("btd,dnh->bnth", np.asarray(x, "float64"), weights[f"{name}/kernel"])
    bias = weights.get(f"{name}/bias")
    return heads if bias is None else heads + bias[None, :, None]


def _masks_of(masks, b, num_queries, num_keys, self_attention):
    """Return where queries exist, where keys exist, and the segments, of row b."""
    queries, keys, segments = (masks.get(name) for name in ("query_mask", "key_mask", "segment_ids"))
    query_exists = np.ones(num_queries, bool) if queries is None else queries[b]
    key_exists = np.ones(num_keys, bool) if keys is None else keys[b]
    if self_attention:
        key_exists = key_exists & query_exists
    return query_exists, key_exists, None if segments is None else segments[b]


def _local_pattern(head):
    layer, lengths = head.layer, (len(head.query), len(head.key))
    if layer.window is not None and layer.use_successor_values:
        return definitions.earlier_window(*lengths, layer.window) & _reads_successors(head)
    if layer.window is not None:
        return definitions.window(*lengths, layer.window, head.causal)
    before = 1 if layer.num_blocks_before is None else layer.num_blocks_before
    after = before if layer.num_blocks_after is None else layer.num_blocks_after
    return definitions.local_blocks(*lengths, layer.block_size, before, after, head.causal, layer.key_block_size)


def _local(head, first=None, share=None):
    """Return a head of local attention, in which tokens, bool (S,), see all and are seen by all; shares are factors."""
    first = np.zeros((1, 1), bool) if first is None else first[:, None] | first
    share = _share(head) if share is None else share
    # A factor in the softmax is its logarithm in the scores, save where it is zero.
    return _by_positions(head, (_local_pattern(head) | first) & (share > 0), np.log(np.where(share > 0, share, 1.0)))


def _global_local(head):
    """Return a head of local attention with global tokens, which count as often as marked."""
    layer, always = head.layer, np.arange(len(head.key)) < head.layer.num_first_global
    counts = np.maximum(head.marks, always) * head.key_exists
    first = np.zeros(len(counts), bool)
    first[np.flatnonzero(counts)[: layer.num_global]] = True
    share = np.where(first[:, None], 1.0, np.where(first, counts, _share(head)))
    found = _local(head, first, share)
    if not layer.own_projections:
        return found
    own = {"query": head.index, "key": _key_head(layer, head.index), "value": _key_head(layer, head.index)}
    for name, index in own.items():
        heads = _project(head.weights, f"global_{name}", head.inputs[None])[0]
        own[name] = _normed(layer, head.weights, name, heads[index])
    of_global = _local(dataclasses.replace(head, **own), first, share)
    return [np.where(first[:, None], *pair) for pair in zip(of_global, found, strict=True)]


def _reads_successors(head):
    """Give each key the value of the token after it, and return which keys have one, bool (S,)."""
    head.value = _next_values(head)
    return definitions.followed(head.key_exists, head.segments)


def _next_values(head):
    return np.concatenate([head.value[1:], np.zeros_like(head.value[:1])])


def _share(head, first=0):
    """Return how much of each key counts in the span of a head, which begins at distance `first`, (T, S)."""
    layer, distance = head.layer, np.abs(_apart(np.arange(len(head.query)), np.arange(len(head.key))))
    if layer.adaptive_span is None:
        return np.ones(distance.shape)
    reach = head.weights["fraction"][head.index] * layer.window
    return np.clip((reach - (distance - first)) / layer.adaptive_span["ramp"] + 1, 0, 1)


def _local_2d(head):
    """Return a head of local attention on an image, with the tokens before the image that see and are seen by all."""
    layer, first, lengths = head.layer, head.layer.num_class_tokens, (len(head.query), len(head.key))
    before = layer.num_blocks_before or (1, 1)
    own = layer.width, layer.block_shape, before, layer.num_blocks_after or before
    pixels = [max(length - first, 0) for length in lengths]
    seen = np.ones(lengths, bool)
    seen[first:, first:] = definitions.image_blocks(*pixels, *own, head.causal, layer.order, layer.height)
    if head.causal:
        seen &= _apart(*map(np.arange, lengths)) <= 0
    places = definitions.pixels(max(pixels), layer.width, layer.block_shape, layer.order, layer.height)
    places = np.array([(0, 0)] * first + places)
    extra = np.zeros(lengths)
    if layer.position == "rotary_2d":
        head.query, head.key = (_rotated_by_axes(x, places[: len(x)]) for x in (head.query, head.key))
    if layer.position == "relative_2d":
        for axis, name in enumerate(("relative_row", "relative_column")):
            table = head.weights[name]
            reach = (len(table) - 1) // 2
            rows = np.clip(_apart(*(places[:length, axis] for length in lengths)), -reach, reach) + reach
            extra += np.einsum("th,tsh->ts", _scale(layer) * head.query, table[rows])
        extra[:first] = extra[:, :first] = 0
    return _by_positions(head, seen, extra)


def _rotated_by_axes(x, places):
    """Return vectors (T, H) of which one half turns by the row and the other by the column, (T, 2)."""
    halves = np.split(x, 2, axis=1)
    return np.concatenate([attention.rotate(half, places[:, axis]) for axis, half in enumerate(halves)], axis=1)


def _dense(head):
    apart = _apart(*(np.arange(len(x)) for x in (head.query, head.key)))
    return _by_positions(head, apart <= 0 if head.causal else np.ones(apart.shape, bool))


def _strided(head):
    part, _ = _part_of_head(head)
    lengths = len(head.query), len(head.key)
    return _by_positions(head, definitions.strided(*lengths, head.layer.stride, part, head.causal))


def _fixed(head):
    part, number = _part_of_head(head)
    columns = head.layer.block_size, head.layer.num_summary, number % head.layer.num_groups
    return _by_positions(head, definitions.fixed(len(head.query), len(head.key), *columns, part, head.causal))


def _all(head):
    """Return a head of all-attention: its window under the span, and the vectors in the same softmax or another.

    A persistent vector is a key sqrt(H) K and a value sqrt(M) V, with no position and no span.
    """
    layer, weights = head.layer, head.weights
    keys, values = weights["key"] * layer.key_dim**0.5, weights["value"] * layer.num_persistent**0.5
    near = (layer.num_heads + 1) // 2 if layer.variant == "head_split" else layer.num_heads
    if head.index >= near:
        slots = np.exp(head.query @ keys[head.index - near].T * _scale(layer))
        nothing = np.zeros(head.allowed.shape)
        return slots / slots.sum(1, keepdims=True) @ values[head.index - near], nothing, nothing > 0
    window, pattern = _window_of_all(head)
    number = 0 if layer.variant == "head_split" else head.index
    slots = np.exp(attention.capped(head.query @ keys[number].T * _scale(layer), layer.head_settings.logit_soft_cap))
    if layer.variant == "all":
        total = window.sum(1, keepdims=True) + slots.sum(1, keepdims=True)
        if "sinks" in weights:
            total = total + np.exp(weights["sinks"][head.index])
        return (window @ head.value + slots @ values[number]) / total, window / total, pattern
    shares = window / np.maximum(window.sum(1, keepdims=True), 1e-300)
    output = shares @ head.value
    if layer.variant == "split":
        output = output + slots / slots.sum(1, keepdims=True) @ values[number]
    return output, shares, pattern


def _window_of_all(head):
    """Return the exponentials of the scores of a window, times the span, and which pairs have any."""
    layer, first = head.layer, 1 if head.layer.mask_self else 0
    positions = np.arange(len(head.query)), np.arange(len(head.key))
    distance = np.abs(_apart(*positions))
    pattern = definitions.window(*distance.shape, layer.window + first, head.causal) & (distance >= first)
    scores, _ = _scores(head, head.key, positions, _apart(*positions))
    share = _share(head, first)
    pattern = pattern & (share > 0) & head.allowed & head.key_exists
    return np.exp(scores) * share * pattern, pattern


def _lsh(head):
    """Return a head of hashing attention: every round adds the exponentials of what it shows."""
    layer, positions = head.layer, (np.arange(len(head.query)), np.arange(len(head.key)))
    if layer.share_qk:
        head.query_exists = head.query_exists & head.key_exists
    masks_self = layer.share_qk if layer.mask_self is None else layer.mask_self
    own = _apart(*positions) == 0
    total, output = np.zeros(own.shape), np.zeros((len(head.query), head.value.shape[-1]))
    pattern = np.zeros(own.shape, bool)
    for counts, apart in _counts_of_rounds(head, _apart(*positions)):
        seen = counts * head.allowed
        pattern |= seen > 0
        key = head.key / np.linalg.norm(head.key, axis=1, keepdims=True)
        scores, rows = _scores(head, key, positions, apart)
        value_rows = np.zeros((*own.shape, 1)) if rows is None else head.weights["relative_value"][rows]
        shares = np.exp(scores) * seen * (~own if masks_self else 1.0)
        total += shares
        output += shares @ head.value + np.einsum("ts,tsh->th", shares, value_rows)
    alone = np.zeros(len(total), bool)
    if masks_self:
        alone = (total.sum(1) == 0) & pattern.any(1)
        total[alone] = own[alone]
        output[alone] = (head.value + value_rows[own])[alone]  # a token's own rank is 0 in every round
        pattern = pattern & (~own | alone[:, None])
    sums = total.sum(1, keepdims=True)
    if "sinks" in head.weights:
        sums = sums + np.where(alone[:, None], 0.0, np.exp(head.weights["sinks"][head.index]))
    sums = np.maximum(sums, 1e-300)
    return output / sums, total / sums, pattern


def _counts_of_rounds(head, tokens_apart):
    """Return how often a query sees a key, and how far apart they are, (T, S) each: for each round, or for all."""
    layer = head.layer
    rounds = [
        [_buckets(head, x, exists, rotation) for x, exists in _sides(head)]
        for rotation in head.weights["rotations"][:, _key_head(layer, head.index)]
    ]
    if layer.use_successor_values:
        followed = _reads_successors(head)
        found = [definitions.bands(*groups, layer.bucket_size, causal=True, earlier=True) for groups in rounds]
        return [(seen & followed, apart) for seen, apart in found]
    if layer.selection == "band":
        return [definitions.bands(*groups, layer.bucket_size, head.causal) for groups in rounds]
    counts = definitions.chunks(*zip(*rounds, strict=True), layer.bucket_size)
    if head.causal:
        counts = counts * (tokens_apart <= 0)
    return [(counts, tokens_apart)]


def _sides(head):
    return (head.query, head.query_exists), (head.key, head.key_exists)


def _buckets(head, x, exists, rotation):
    turned = x @ rotation
    return _named(head, np.argmax(np.concatenate([turned, -turned], 1), 1), exists)


def _named(head, groups, exists):
    """Return (document, group) of each token, None for one that does not exist."""
    documents = np.zeros(len(groups), int) if head.segments is None else head.segments
    return [(int(documents[i]), int(groups[i])) if exists[i] else None for i in range(len(groups))]


def _scores(head, key, positions, places_apart):
    """Return the scores (T, S) with what positions add, and the rows of the table, None or int (T, S)."""
    layer, query, rows = head.layer, head.query * _scale(head.layer), None
    if layer.position == "rotary":
        query, key = attention.rotate(query, positions[0]), attention.rotate(key, positions[1])
    scores = attention.capped(query @ key.T, layer.head_settings.logit_soft_cap)
    if layer.position == "alibi":
        scores = scores - _slope(head) * np.abs(_apart(*positions))
    if layer.position == "relative":
        table = head.weights["relative_key"]
        reach = (len(table) - 1) // 2
        rows = np.clip(places_apart, -reach, reach) + reach
        scores = scores + np.take_along_axis(query @ table.T, rows, 1)
    return scores, rows


def _part_of_head(head):
    """Return "local", "far" or "merged", and the number of the head among those that have it."""
    layer, near = head.layer, (head.layer.num_heads + 1) // 2
    if layer.heads == "split":
        return ("local", head.index) if head.index < near else ("far", head.index - near)
    return "merged" if layer.heads == "merged" else ("local", "far")[layer.layer_index % 2], head.index


def _by_positions(head, pattern, extra=0.0, mask_self=False, next_pattern=None):
    """Return attention with true distances and scaled scores under a pattern, once the call's masks are in it.

    In the same softmax `next_pattern` says which keys a query sees with the values of the tokens after them.
    """
    masked = head.allowed & head.key_exists
    pattern, positions = pattern & masked, (np.arange(len(head.query)), np.arange(len(head.key)))
    if next_pattern is not None:
        return _of_both_values(head, positions, pattern, next_pattern & masked, mask_self)
    if mask_self:
        pattern = definitions.without_self(pattern, *positions)
    attended = _attend(head, *positions, pattern, _apart(*positions), _scale(head.layer), extra, mask_self=mask_self)
    return (*attended, pattern)


def _scale(layer):
    return layer.head_settings.attention_scale or layer.key_dim**-0.5


def _of_both_values(head, positions, pattern, next_pattern, mask_self):
    next_pattern = next_pattern & definitions.followed(head.key_exists, head.segments)
    queries, keys = positions[0], np.tile(positions[1], 2)
    pattern = np.concatenate([pattern, next_pattern], 1)
    head.value, head.key = np.concatenate([head.value, _next_values(head)]), np.concatenate([head.key] * 2)
    if mask_self:
        pattern = definitions.without_self(pattern, queries, keys)
    sizes = {"scale": _scale(head.layer), "rows": np.arange(len(keys)), "mask_self": mask_self}
    own = _attend(head, queries, keys, pattern, _apart(queries, keys), **sizes)
    output, weights, pattern = own[0], *(np.split(x, 2, 1) for x in (own[1], pattern))
    return output, sum(weights), pattern[0] | pattern[1]


def _routing(head):
    head.query, head.key = _normalize(head.query), _normalize(head.key)
    if head.layer.share_qk:  # one token is a query and a key: hidden as a key, it is in no cluster and asks nothing
        head.query_exists = head.query_exists & head.key_exists
    if head.layer.selection == "top_keys":
        return _top_keys(head)
    selection = head.layer.selection or ("nearest" if head.causal else "top_k")
    mask_self = head.layer.mask_self
    if mask_self is None:
        mask_self = head.layer.share_qk and selection not in OF_ALL_TOKENS
    return _of_all_tokens(head, mask_self) if selection in OF_ALL_TOKENS else _nearest(head, selection, mask_self)


def _sparse(head):
    pattern, index, first_leaf = compositions.of_head(head.layer.pattern, head.index)
    index = _key_head(head.layer, index)
    groups = [_groups_of_leaf(head, leaf, first_leaf + i, index) for i, leaf in enumerate(primitives(pattern))]
    lengths = len(head.query), len(head.key)
    seen, seen_before = (
        compositions.visible(pattern, lengths, head.causal, groups, head.segments, kind) for kind in (False, True)
    )
    mask_self = head.layer.share_qk if head.layer.mask_self is None else head.layer.mask_self
    return _by_positions(head, seen, mask_self=mask_self, next_pattern=seen_before if seen_before.any() else None)


def _groups_of_leaf(head, leaf, number, index):
    """Return the groups of queries and of keys, or None for a pattern of positions alone; `index` is the head's."""
    if isinstance(leaf, SelectedBlocks):
        return _selected_blocks(head, leaf)
    if isinstance(leaf, RetrievedClusters):
        query, key = (attention.rotate(x, np.arange(len(x))) for x in (head.query, head.key))
        return definitions.retrieved_clusters(query, key, leaf, head.key_exists)[0]
    if not leaf.content_based:
        return None
    sides = [(_normalize(x), exists) for x, exists in _sides(head)]
    if head.layer.share_qk:  # one token is a query and a key: hidden as a key, it is in no group
        sides = [(x, head.query_exists & head.key_exists) for x, _ in sides]
    if isinstance(getattr(leaf, "pattern", leaf), Hashed):
        return [_buckets(head, x, exists, head.weights[f"axes_{number}"][index]) for x, exists in sides]
    centroids = head.weights[f"clusters_{number}/centroids"][index]
    if isinstance(leaf, TopKeys):
        return _chosen_keys(head, centroids, leaf.cluster_size, sides[1][1])
    return [_named(head, np.argmax(x @ centroids.T, axis=1), exists) for x, exists in sides]


def _block_selected(head):
    if head.layer.key_convolution is not None:
        kernel = head.weights["key_convolution/kernel"][:, _key_head(head.layer, head.index)]
        head.key = definitions.convolved_keys(head.key, kernel, head.key_exists, head.segments)
    return _by_positions(head, _selected_blocks(head, head.layer))


def _selected_blocks(head, sizes):
    """Return what the queries of a head see by block selection, bool (T, S); `sizes` has those of the pattern."""
    query, key = head.query, head.key
    if sizes.use_shared_choice:
        query = head.queries[_group(head)].sum(0)
    if head.layer.position == "rotary":
        query, key = (attention.rotate(x, np.arange(len(x))) for x in (query, key))
    return definitions.selected_blocks(query, key, sizes.block_size, sizes.num_blocks, head.key_exists, head.segments)


def _native_sparse(head):
    """Return a head of native sparse attention: compressed blocks, selected blocks and a window, added up by gates."""
    layer, weights, own = head.layer, head.weights, _key_head(head.layer, head.index)

    def project(name):
        return _project(weights, name, head.inputs[None])[0, own]

    keys = [_normed(layer, weights, "key", project(f"{name}_key")) for name in ("window", "compressed")]
    values = [project(f"{name}_value") for name in ("window", "compressed")]
    gates = 1 / (1 + np.exp(-_project(weights, "branch_gate", head.inputs[None])[0, head.index]))
    blocks = definitions.counted_blocks(len(head.query), layer.block_size, head.key_exists, head.segments)
    pooled = [
        np.reshape([_pooled(weights, name, x, block) for block, _ in blocks], (len(blocks), x.shape[1]))
        for name, x in (("key_pooling", keys[1]), ("value_pooling", values[1]))
    ]
    scale, sinks = _scale(layer), weights.get("sinks")
    parts = []
    for index in range(layer.num_heads)[_group(head)]:
        seen = definitions.seen_blocks(blocks, layer.block_size, head.allowed_of_heads[index], head.segments)
        options = {"cap": layer.head_settings.logit_soft_cap, "sink": None if sinks is None else sinks[index]}
        parts.append(attention.attend(scale * head.queries[index], *pooled, seen, **options))
    compressed = parts[head.index - _group(head).start][0]
    shares = sum(part[1] for part in parts)
    chosen = definitions.best_blocks(shares, blocks, layer.block_size, layer.num_blocks, head.segments)
    selected = _by_positions(head, chosen)
    head.key, head.value = keys[0], values[0]
    near = _by_positions(head, definitions.window(*head.allowed.shape, layer.window, True))
    output = gates[:, :1] * compressed + gates[:, 1:2] * selected[0] + gates[:, 2:] * near[0]
    return output, gates[:, 1:2] * selected[1] + gates[:, 2:] * near[1], selected[2] | near[2]


def _pooled(weights, name, x, block):
    """Return one vector of those of a block that count, a list of positions and of places in the block."""
    own = {weight: weights[f"{name}/{weight}"] for weight in ("position", "inner_kernel", "outer_kernel")}
    total = weights.get(f"{name}/inner_bias", 0.0) + np.zeros(x.shape[1])
    for j, place in block:
        total = total + (x[j] + own["position"][place]) @ own["inner_kernel"][place]
    return total / (1 + np.exp(-total)) @ own["outer_kernel"]


# How one head of a layer attends: a function of a `Head`, which returns output, weights and pattern.
CASES = {
    layers.ClusteredAttention: clustered,
    layers.AllAttention: _all,
    layers.BlockSelectedAttention: _block_selected,
    layers.DenseAttention: _dense,
    layers.FixedAttention: _fixed,
    layers.GlobalLocalAttention: _global_local,
    layers.LSHAttention: _lsh,
    layers.LocalAttention: _local,
    layers.LocalAttention2D: _local_2d,
    layers.NativeSparseAttention: _native_sparse,
    layers.RoutingAttention: _routing,
    layers.SparseAttention: _sparse,
    layers.StridedAttention: _strided,
}


def _nearest(head, selection, mask_self):
    groups = [_groups(head, selection, *side) for side in _sides(head)]
    if head.layer.use_successor_values:
        pattern, ranks_apart = definitions.bands(*groups, head.layer.cluster_size, causal=True, earlier=True)
        pattern = pattern & _reads_successors(head)
    else:
        pattern, ranks_apart = definitions.bands(*groups, head.layer.cluster_size, head.causal)
    pattern = pattern & head.allowed
    positions = np.arange(len(head.query)), np.arange(len(head.key))
    if mask_self:
        pattern = definitions.without_self(pattern, *positions)
    return (*_attend(head, *positions, pattern, ranks_apart, _own_scale(head.layer), mask_self=mask_self), pattern)


def _own_scale(layer):
    """Return the factor of the scores of routing, which has none by itself."""
    return layer.head_settings.attention_scale or 1.0


def _top_keys(head):
    groups = _chosen_keys(
        head, head.weights["centroids"][_key_head(head.layer, head.index)], head.layer.cluster_size, head.key_exists
    )
    pattern, ranks_apart = definitions.chosen_keys(*groups, len(head.key))
    pattern = pattern & head.allowed
    positions = np.arange(len(head.query)), np.arange(len(head.key))
    return (*_attend(head, *positions, pattern, ranks_apart, _own_scale(head.layer)), pattern)


def _chosen_keys(head, centroids, size, key_exists):
    """Return the cluster of each query, and the keys of each cluster."""
    queries, keys = (_normalize(x) @ centroids.T for x in (head.query, head.key))
    return np.argmax(queries, axis=1), definitions.best_members(keys, size, key_exists)


def _groups(head, selection, x, exists):
    if selection == "random":  # any partition will do: the layer's own
        layer = head.layer
        positions = np.arange(len(x), dtype="int32")[None]
        clusters = np.asarray(random_groups(positions, layer.num_heads, layer.num_clusters, layer.seed))[0, head.index]
    else:
        clusters = np.argmax(x @ head.weights["centroids"][_key_head(head.layer, head.index)].T, axis=-1)
    return _named(head, clusters, exists)


def _members(head, x, exists):
    """Return the members of each cluster, by ascending position."""
    layer = head.layer
    if layer.selection == "hash":
        planes = head.weights["planes"][_key_head(layer, head.index)]
        buckets = (x @ planes > 0) @ 2 ** np.arange(layer.num_clusters.bit_length() - 1)
        return definitions.bucket_members(buckets, layer.num_clusters, layer.cluster_size, exists)
    choose = definitions.strided_members if layer.selection == "strided" else definitions.best_members
    return choose(x @ head.weights["centroids"][_key_head(head.layer, head.index)].T, layer.cluster_size, exists)


def _of_all_tokens(head, mask_self):
    layer = head.layer
    output, probabilities = np.zeros((len(head.query), head.value.shape[-1])), np.zeros(head.allowed.shape)
    count, seen = np.zeros((len(head.query), 1)), np.zeros(head.allowed.shape, bool)
    members = [_members(head, x, exists) for x, exists in _sides(head)]
    for queries, keys in zip(*members, strict=True):
        pairs = np.ix_(queries, keys)
        ranks_apart = _apart(np.arange(len(queries)), np.arange(len(keys)))
        pattern = head.allowed[pairs]
        if head.causal:
            by_rank = layer.share_qk or layer.reproduce_reference
            pattern = pattern & ((ranks_apart if by_rank else _apart(queries, keys)) <= 0)
        if mask_self:
            pattern = definitions.without_self(pattern, queries, keys)
        got, shares = _attend(head, queries, keys, pattern, ranks_apart, _own_scale(layer))
        output[queries] += got
        probabilities[pairs] += shares
        count[queries] += 1
        seen[pairs] |= pattern
    count = count + 0.01 if layer.reproduce_reference else np.maximum(count, 1)
    return output / count, probabilities / count, seen


def _attend(head, queries, keys, pattern, apart, scale, extra=0.0, rows=None, mask_self=False):
    """Return attention between the tokens at two lists of positions; `apart` is what the table of distances is for.

    `extra` is added to the scores. The rows of keys and values are `rows`, None where they are those of the positions.
    With `mask_self` a query that sees itself sees nothing else, and has no sink beside it.
    """
    layer, tokens_apart, rows = head.layer, _apart(queries, keys), keys if rows is None else rows
    query, key, value = scale * head.query[queries], head.key[rows], head.value[rows]
    bias, tables = 0.0, {}
    if layer.position == "alibi":
        bias = -_slope(head) * np.abs(tokens_apart)
    if layer.position == "rotary":
        turned = layer.head_settings.rotary.dim or layer.key_dim
        base = layer.head_settings.rotary.max_wavelength
        query, key = (
            np.concatenate([attention.rotate(x[:, :turned], at, base), x[:, turned:]], axis=1)
            for x, at in ((query, queries), (key, keys))
        )
    if layer.position == "relative":
        reach = (len(head.weights["relative_key"]) - 1) // 2
        by_token = getattr(layer, "distance", "rank") == "token"
        tables = {
            "rows": np.clip(tokens_apart if by_token else apart, -reach, reach) + reach,
            "key_table": head.weights["relative_key"],
            "value_table": head.weights.get("relative_value"),
        }
    sinks = head.weights.get("sinks")
    if sinks is not None:
        sees_self = np.any(pattern & (tokens_apart == 0), axis=1, keepdims=True)
        tables["sink"] = np.where(sees_self & mask_self, -np.inf, sinks[head.index])
    tables["cap"] = layer.head_settings.logit_soft_cap
    return attention.attend(query, key, value, pattern, bias + extra, **tables)


def _apart(queries, keys):
    return np.asarray(keys, int)[None, :] - np.asarray(queries, int)[:, None]  # a list of none would be of floats


def _normalize(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
