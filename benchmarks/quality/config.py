"""Configuration of one cell, such as --config=benchmarks/quality/config.py:python-1024-successors-500

The name is TEXT-LENGTH-KIND-STEPS. TEXT is only a name; --config.data.path is its path, and --config.seed the seed. All
models have two layers with four heads of size 32, and equal numbers of weights. Each layer has two local heads (window
64) and two heads of the given kind. "last_KIND" uses the kind only in the last layer; the first layer has four local
heads.
"""

import ml_collections

from benchmarks.quality.cells import Cell
from tf_sparse_attention.trainers.configs import base

WINDOW, CLUSTER_SIZE, NUM_LAYERS, HIDDEN_DIM = 64, 64, 2, 128
TOKENS_IN_A_STEP = 4096
REACH = NUM_LAYERS * (WINDOW - 1)  # of the local windows of all layers
HEADS = {"num_heads": 2, "key_dim": 32}
LOCAL = {"layer": "LocalAttention", **HEADS, "window": WINDOW, "position": "rotary"}
# Blocks have as many keys per query as clusters.
BLOCKS = {**HEADS, "block_size": 16, "num_blocks": CLUSTER_SIZE // 16, "position": "rotary"}
INTERMEDIATE = 512  # of "local", the reference for the number of weights
WITHOUT_KEYS = ("RoutingAttention", "LSHAttention")  # share queries and keys by default


def _routing(**own):
    sizes = {"layer": "RoutingAttention", **HEADS, "cluster_size": CLUSTER_SIZE}
    return lambda clusters: {**sizes, "num_clusters": clusters, **own}


def _lsh(**own):
    sizes = {"layer": "LSHAttention", **HEADS, "bucket_size": CLUSTER_SIZE}
    return lambda clusters: {**sizes, "num_buckets": clusters, **own}


def _successors(**own):
    return _routing(use_successor_values=True, **own)


def _variant(name, **own):
    """Return a part with a layer of `variants.py`, in Keras's serialized format."""
    names = {"module": "benchmarks.quality.variants", "class_name": name, "registered_name": f"quality>{name}"}
    sizes = {**HEADS, "cluster_size": CLUSTER_SIZE, "name": name.lower()}

    def part(clusters):
        from benchmarks.quality import variants  # noqa: F401  # registers the classes; imports TensorFlow

        return {**names, "config": {**sizes, "num_clusters": clusters, **own}}

    return part


# Heads of each kind, in addition to the two local heads, as functions of the number of clusters.
KINDS = {
    "random": _routing(selection="random"),
    "lsh": _lsh(),
    "nearest": _routing(selection="nearest"),
    "top_k": _routing(selection="top_k"),  # as published, not causal
    "successors": _successors(),
    "random_successors": _successors(selection="random"),
    "lsh_successors": _lsh(use_successor_values=True),
    "selected": lambda clusters: {"layer": "BlockSelectedAttention", **BLOCKS},
    "native": lambda clusters: {"layer": "NativeSparseAttention", **BLOCKS, "window": WINDOW},
    "window_successors": lambda clusters: {
        "layer": "LocalAttention", **HEADS, "window": CLUSTER_SIZE, "use_successor_values": True
    },
    "no_commitment": _successors(commitment_loss=0.0),
    "more_commitment": _successors(commitment_loss=0.01),
    "one_cluster": lambda clusters: _successors(cluster_size=clusters * CLUSTER_SIZE)(1),  # all earlier tokens
    "faster_centroids": _successors(ema_decay=0.9),
    "sooner_revived": _successors(revive_after=10),
    "half_the_clusters": lambda clusters: _successors()(clusters // 2),
    "twice_the_clusters": lambda clusters: _successors()(clusters * 2),
    "half_the_size": _successors(cluster_size=CLUSTER_SIZE // 2),
    "twice_the_size": _successors(cluster_size=CLUSTER_SIZE * 2),
    "rank_distance": _successors(position="relative"),
    "token_distance": _successors(position="relative", distance="token"),
    "rotary": _successors(position="rotary"),
    "temperature_1": _variant("LearnedTemperature", use_successor_values=True, start=1.0),
    "temperature_half": _variant("LearnedTemperature", use_successor_values=True, start=0.5),
    "temperature_root": _variant("LearnedTemperature", use_successor_values=True, start=HEADS["key_dim"] ** -0.5),
    "gate": _variant("Gated", use_successor_values=True),
    "data_start": _variant("Started", use_successor_values=True, start="data"),
    "fast_start": _variant("Started", use_successor_values=True, start="fast"),
    "shifted_keys": _variant("ShiftedKeys", selection="nearest", share_qk=False),
    "convolved_keys": _variant("ConvolvedKeys", selection="nearest", share_qk=False),
}  # fmt: skip


def _one_softmax(clusters):
    """Return heads that attend to a window and, with successor values, to a cluster, in one softmax."""
    nearest = {"num_clusters": clusters, "cluster_size": CLUSTER_SIZE}
    patterns = [_pattern("Window", size=WINDOW), _pattern("Successors", pattern=_pattern("Nearest", **nearest))]
    union = _pattern("Union", parts=patterns)
    return {
        "layer": "SparseAttention", **HEADS, "num_heads": 4, "pattern": union, "share_qk": True, "position": "rotary"
    }  # fmt: skip


def _pattern(name, **own):
    return {
        "module": "tf_sparse_attention.patterns", "class_name": name, "config": own,
        "registered_name": f"tf_sparse_attention>{name}",
    }  # fmt: skip


def _heads(part, num_heads):
    return {**part, "num_heads": num_heads}


# Attention parts of a block, as functions of the sequence length and the number of clusters.
WHOLE = {
    "local": lambda length, clusters: [_heads(LOCAL, 4)],
    "dense": lambda length, clusters: [{**_heads(LOCAL, 4), "window": length}],
    # Half of the heads see a window, the other half every 64th key.
    "strided": lambda length, clusters: [
        {"layer": "StridedAttention", "num_heads": 4, "key_dim": 32, "stride": WINDOW, "position": "rotary"}
    ],
    "one_routed": lambda length, clusters: [_heads(LOCAL, 3), _heads(_successors()(clusters), 1)],
    "three_routed": lambda length, clusters: [_heads(LOCAL, 1), _heads(_successors()(clusters), 3)],
    "four_routed": lambda length, clusters: [_heads(_successors()(clusters), 4)],
    "together": lambda length, clusters: [
        _heads(LOCAL, 1), _heads(_successors(cluster_size=2 * CLUSTER_SIZE, ema_decay=0.9)(clusters), 3)
    ],
    "added": lambda length, clusters: [_heads(LOCAL, 4), _successors()(clusters)],
    "one_softmax": lambda length, clusters: [_one_softmax(clusters)],
    **{
        kind: lambda length, clusters, part=part: [dict(LOCAL), part(clusters)] for kind, part in KINDS.items()
    },
}  # fmt: skip
ALONE = ("first", "last")  # first_KIND, last_KIND: only in this layer, with local heads in the other layer


def parts_of(kind: str, length: int) -> list:
    """Return the attention parts of all blocks, or a list with the parts of each block."""
    place, _, name = kind.partition("_")
    if place not in ALONE:
        place, name = "both", kind
    if name not in WHOLE:
        raise ValueError(
            f"`kind` must be one of {', '.join(WHOLE)}, with the prefix 'first_' or 'last_' for one layer. "
            f"Received: kind={kind}."
        )
    parts, local = WHOLE[name](length, length // CLUSTER_SIZE), [_heads(LOCAL, 4)]
    return {"first": [parts, local], "last": [local, parts], "both": parts}[place]


def _intermediate(parts):
    """Return the feed-forward size that gives a model as many weights as "local"."""
    blocks = parts if isinstance(parts[0], list) else [parts] * NUM_LAYERS
    local = 4 * 4 * NUM_LAYERS  # projections of one head
    own = sum(_num_projections(part) for block in blocks for part in block)
    # A feed-forward unit has 2 HIDDEN_DIM + 1 weights, a projection of one head 32 HIDDEN_DIM.
    return INTERMEDIATE + (local - own) * HEADS["key_dim"] // (2 * NUM_LAYERS)


def _num_projections(part):
    own = part.get("config", part)
    if own.get("layer") == "NativeSparseAttention":
        return _num_weights(own) // (HIDDEN_DIM * own["key_dim"])
    shares = own.get("share_qk", part.get("layer", "RoutingAttention") in WITHOUT_KEYS)
    # A table of relative positions is as large as a projection of one head. Distances by rank have a table for keys and
    # a table for values.
    tables = {"rank": 2, "token": 1}[own.get("distance", "rank")] if own.get("position") == "relative" else 0
    return own["num_heads"] * (3 if shares else 4) + tables


def _num_weights(part):
    """Return the number of weights of a layer."""
    from tf_sparse_attention import layers

    layer = getattr(layers, part["layer"])(**{name: value for name, value in part.items() if name != "layer"})
    layer.build((None, None, HIDDEN_DIM))
    return layer.count_params()


def get_config(name: str = "") -> ml_collections.ConfigDict:
    """Return the configuration of a cell."""
    _, length, kind, steps, _ = Cell.of(name)
    config = base.get_config()
    config.data.update(tokenizer="subword", sequence_length=length, batch_size=max(TOKENS_IN_A_STEP // length, 1))
    parts = parts_of(kind, length)
    config.model.update(num_layers=NUM_LAYERS, hidden_dim=HIDDEN_DIM, intermediate_dim=_intermediate(parts))
    config.model.update(attention=parts, tie_embeddings=True)
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=50)
    config.train.update(num_steps=steps, log_every=100, evaluate_every=0, checkpoint_every=250)
    return config
