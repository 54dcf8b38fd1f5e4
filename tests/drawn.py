"""Layers whose arguments Hypothesis draws, over every switch: pairs of a class and its keyword arguments.

`tests/layers/test_drawn_layers.py` compares results of these layers, `tests/layers/decoded.py` decoding.
"""

from hypothesis import strategies as st

from tf_sparse_attention import layers, patterns

LONGEST = 60  # the longest sequence drawn
POSITIONS = st.sampled_from([None, "relative", "rotary", "alibi"])
FEW_HEADS = st.integers(1, 3)
REACH = st.integers(1, 12) | st.integers(13, 70)  # of windows and bands: within a block, over several, over everything
BLOCK = st.integers(1, 9) | st.integers(10, 70)
SPAN = st.sampled_from([None, {"ramp": 3}, {"ramp": 9, "initial": 0.7}])
PAIR = st.tuples(st.integers(0, 2), st.integers(0, 2))


HEAD_OPTIONS = {"use_sink": True, "logit_soft_cap": 0.5, "use_query_key_norm": True, "use_gate": True}
HEAD_OPTIONS |= {"attention_scale": 0.7, "num_key_value_heads": 1}
GROUPS = ("num_key_value_heads",)  # which need keys of their own, and as many key heads as there are parts of heads
OF_ONE_SOFTMAX = ("use_sink", "logit_soft_cap")


def common(draw, num_heads=FEW_HEADS, without=(), **own):
    """Draw what all layers have, of `HEAD_OPTIONS` at most two, and none that a layer is `without`."""
    sizes = {"num_heads": draw(num_heads), "key_dim": draw(st.sampled_from([2, 4]))}
    names = draw(st.lists(st.sampled_from([name for name in HEAD_OPTIONS if name not in without]), max_size=2))
    sizes |= {"position": draw(POSITIONS), "value_dim": draw(st.sampled_from([None, 3])), "seed": 1}
    return sizes | {name: HEAD_OPTIONS[name] for name in names} | own


@st.composite
def local(draw):
    own = {"window": draw(REACH), "adaptive_span": draw(SPAN), "use_successor_values": draw(st.booleans())}
    blocks = {"block_size": draw(BLOCK), "num_blocks_before": draw(st.integers(0, 3))}
    blocks |= {"num_blocks_after": draw(st.none() | st.integers(0, 3))}
    return layers.LocalAttention, common(draw) | draw(st.sampled_from([own, blocks]))


@st.composite
def unequal_blocks(draw):
    own = {"block_size": draw(BLOCK), "key_block_size": draw(BLOCK)}
    own |= {"num_blocks_before": draw(st.integers(0, 2)), "num_blocks_after": draw(st.integers(0, 2))}
    return layers.LocalAttention, common(draw) | own


@st.composite
def local_2d(draw):
    width = draw(st.integers(1, 12))
    heights = st.none() | st.integers(-(-LONGEST // width), LONGEST)
    own = {"width": width, "height": draw(heights), "order": draw(st.sampled_from(["raster", "blocks"]))}
    own |= {"block_shape": draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))}
    own |= {"num_blocks_before": draw(st.none() | PAIR), "num_blocks_after": draw(st.none() | PAIR)}
    own |= {"num_class_tokens": draw(st.integers(0, 3))}
    if draw(st.booleans()):
        own |= {"position": draw(st.sampled_from(["relative_2d", "rotary_2d"])), "key_dim": 4}
    if own.get("position") == "relative_2d":
        own |= {"max_distance": draw(st.none() | st.integers(1, 8))}
    return layers.LocalAttention2D, common(draw) | own


@st.composite
def global_local(draw):
    own = {"num_global": draw(st.integers(1, 6)), "num_first_global": draw(st.integers(0, 5))}
    own["num_first_global"] = min(own["num_first_global"], own["num_global"])
    own["own_projections"] = draw(st.booleans())
    near = {"window": draw(REACH), "adaptive_span": draw(SPAN)}, {"block_size": draw(BLOCK)}
    return layers.GlobalLocalAttention, common(draw) | own | draw(st.sampled_from(near))


@st.composite
def all_attention(draw, variants=("all", "all", "split", "head_split")):
    # "single_head" has no case in NumPy but a test of its own: its vectors ask with all heads joined.
    variant = draw(st.sampled_from(variants))
    own = {"variant": variant, "num_persistent": draw(st.integers(1, 6)), "window": draw(REACH)}
    own |= {"mask_self": draw(st.booleans()), "adaptive_span": draw(SPAN)}
    refused = () if variant == "all" else (*OF_ONE_SOFTMAX, "attention_scale")
    if variant == "head_split":
        return layers.AllAttention, common(draw, st.sampled_from([2, 4]), refused + GROUPS) | own
    return layers.AllAttention, common(draw, FEW_HEADS, refused) | own


def heads_of_factorized(draw):
    """Draw how heads share out the near and the far part."""
    heads = draw(st.sampled_from(["split", "merged", "interleaved"]))
    return {"heads": heads, "layer_index": draw(st.integers(0, 1)) if heads == "interleaved" else None}


@st.composite
def dense(draw):
    own = common(draw, FEW_HEADS)
    return layers.DenseAttention, own | {"max_distance": own.get("max_distance") or 3}


@st.composite
def strided(draw):
    own = {"stride": draw(BLOCK)} | heads_of_factorized(draw)
    return layers.StridedAttention, common(draw, st.integers(2, 3), GROUPS if own["heads"] == "split" else ()) | own


@st.composite
def fixed(draw):
    groups, summaries = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    size = groups * summaries + draw(st.integers(0, 9) | st.integers(10, 70))
    own = {"num_groups": groups, "num_summary": summaries, "block_size": size} | heads_of_factorized(draw)
    return layers.FixedAttention, common(draw, st.just(4), GROUPS if own["heads"] == "split" else ()) | own


# Vectors of 2 channels are (1, -1) or (-1, 1) once they are normalised, and so are all centroids.
NORMALIZED = {"key_dim": 4}


@st.composite
def routing(draw, selections=("nearest", "random")):
    own = {"num_clusters": draw(st.integers(1, 6)), "cluster_size": draw(REACH)}
    own |= {"selection": draw(st.sampled_from(selections)), "share_qk": draw(st.booleans())}
    own |= {"mask_self": draw(st.sampled_from([None, True, False]))}
    if own["selection"] == "hash":
        own["num_clusters"] = 2 ** draw(st.integers(1, 3))
    refused = () if own["selection"] in ("nearest", "random") else ("use_sink",)
    refused += GROUPS if own["share_qk"] or own["selection"] == "random" else ()
    shared = common(draw, without=refused) | NORMALIZED
    if draw(st.booleans()) and own["mask_self"] is not False and not set(selections) & {"top_k"}:
        own["use_successor_values"] = True
    distances = ["rank", "token"] if shared["position"] == "relative" else ["rank"]
    return layers.RoutingAttention, shared | own | {"distance": draw(st.sampled_from(distances))}


def of_all_tokens():
    """Routing that chooses each cluster's tokens among all of a sequence."""
    return routing(selections=("top_k", "strided", "hash"))


@st.composite
def top_keys(draw):
    own = {"num_clusters": draw(st.integers(1, 6) | st.integers(30, 40)), "cluster_size": draw(REACH)}
    own |= {"selection": "top_keys", "share_qk": False, "mask_self": draw(st.sampled_from([None, False]))}
    shared = common(draw) | NORMALIZED
    distances = ["rank", "token"] if shared["position"] == "relative" else ["rank"]
    return layers.RoutingAttention, shared | own | {"distance": draw(st.sampled_from(distances))}


@st.composite
def lsh(draw, selection="band"):
    own = {"num_buckets": 2 * draw(st.integers(1, 4)), "bucket_size": draw(REACH), "selection": selection}
    own |= {"num_rounds": draw(st.integers(1, 3)), "share_qk": draw(st.booleans())}
    own["use_successor_values"] = selection == "band" and draw(st.booleans())
    hides = st.sampled_from([None, True] if own["use_successor_values"] else [None, True, False])
    refused = GROUPS if own["share_qk"] else ()
    return layers.LSHAttention, common(draw, without=refused) | own | {"mask_self": draw(hides)}


def chunks():
    """Hashing in the published chunks."""
    return lsh(selection="chunks")


@st.composite
def selected(draw):
    own = {"block_size": draw(st.integers(1, 9) | st.sampled_from([16, 40])), "num_blocks": draw(st.integers(1, 5))}
    own["key_convolution"] = draw(st.none() | st.integers(1, 6))
    own["choice_chunk_size"] = draw(st.none() | st.integers(1, 70))
    own["use_shared_choice"] = draw(st.booleans())
    return layers.BlockSelectedAttention, common(draw) | own


@st.composite
def native(draw):
    own = {"block_size": draw(st.integers(1, 9) | st.sampled_from([16, 40])), "num_blocks": draw(st.integers(1, 5))}
    own |= {"window": draw(REACH), "num_key_value_heads": draw(st.sampled_from([None, 1, 2]))}
    # A cap that scores are far beyond makes weights equal in float32, by which blocks are chosen, and not in float64.
    own["logit_soft_cap"] = draw(st.sampled_from([None, 20.0]))
    return layers.NativeSparseAttention, common(draw, st.sampled_from([2, 4]), ("logit_soft_cap",)) | own


@st.composite
def clustered(draw):
    own = {"num_clusters": draw(st.integers(1, 9)), "num_bits": draw(st.integers(8, 40))}
    own |= {"num_iterations": draw(st.integers(1, 5)), "top_k": draw(st.sampled_from([None, 1, 3, 8]))}
    own |= {"position": draw(st.sampled_from([None, "rotary"]))}
    return layers.ClusteredAttention, common(draw, without=OF_ONE_SOFTMAX) | own


@st.composite
def leaves(draw):
    """Patterns that are no compositions."""
    size, small = draw(st.integers(1, 20)), draw(st.integers(1, 5))
    followed = [patterns.Window(size), patterns.Nearest(small, size), patterns.Hashed(2 * small, size)]
    kinds = [
        lambda: patterns.Window(size),
        lambda: patterns.Blocks(size, draw(st.integers(0, 2)), draw(st.sampled_from([None, 0, 1]))),
        lambda: patterns.Stride(size),
        lambda: patterns.Summary(size + small - 1, small),
        lambda: patterns.First(small),
        lambda: patterns.Dilated(small, draw(st.integers(1, 6))),
        lambda: patterns.ImageBlocks(draw(st.integers(2, 9)), (2, 3), (1, 1), (1, 0)),
        lambda: patterns.Nearest(small, size),
        lambda: patterns.SelectedBlocks(size, small),
        lambda: patterns.Hashed(2 * draw(st.integers(1, 3)), size),
        lambda: patterns.Successors(draw(st.sampled_from(followed))),
    ]
    return draw(st.sampled_from(kinds))()


@st.composite
def never_causal_leaves(draw):
    """Patterns that are no compositions, among them one that is never causal, and none that has to be."""
    chosen = st.builds(patterns.TopKeys, st.integers(1, 5) | st.integers(30, 40), st.integers(1, 20))
    return draw(chosen | leaves().filter(lambda leaf: not leaf.must_be_causal))


@st.composite
def compositions(draw, leaf):
    """Pairs of a pattern and its number of heads, made of what a strategy of patterns draws."""

    def one():
        parts = draw(st.lists(leaf, min_size=1, max_size=3))
        return parts[0] if len(parts) == 1 else patterns.Union(tuple(parts))

    if draw(st.booleans()):
        return one(), draw(st.integers(1, 2))
    counts = draw(st.lists(st.integers(1, 2), min_size=2, max_size=3))
    return patterns.Heads(tuple((count, one()) for count in counts)), sum(counts)


@st.composite
def sparse(draw, leaf=None):
    pattern, num_heads = draw(compositions(leaves() if leaf is None else leaf))
    own = {"pattern": pattern, "num_heads": num_heads, "share_qk": draw(st.booleans())}
    refused = GROUPS if own["share_qk"] or isinstance(pattern, patterns.Heads) else ()
    return layers.SparseAttention, common(draw, st.just(num_heads), refused) | NORMALIZED | own


def sparse_top_keys():
    """Compositions with a part whose clusters choose their keys."""
    return sparse(never_causal_leaves()).filter(lambda made: not made[1]["pattern"].can_be_causal)


BY_POSITION = (local, unequal_blocks, local_2d, global_local, all_attention, strided, fixed)
BY_CONTENT = (routing, of_all_tokens, top_keys, lsh, chunks, clustered, selected, native, sparse, sparse_top_keys)
KINDS = {strategy.__name__: strategy for strategy in (*BY_POSITION, *BY_CONTENT)}


def made(kinds, kind):
    """Return a strategy of functions that make a layer of a kind; of "mixed" a mixture of two or three of all kinds.

    Args:
        kinds: dictionary such as `KINDS`.
        kind: one of its keys, or "mixed".
    """
    if kind != "mixed":
        return kinds[kind]().map(lambda one: lambda: one[0](**one[1]))
    parts = st.lists(st.one_of([each() for each in kinds.values()]), min_size=2, max_size=3)
    return parts.map(lambda parts: lambda: layers.MixedAttention([one(**arguments) for one, arguments in parts]))
