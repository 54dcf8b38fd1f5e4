"""The configuration of one cell, such as --config=benchmarks/quality/config.py:python-1024-successors-500

TEXT-LENGTH-KIND-STEPS: the text is only a name, its path is --config.data.path; the seed is --config.seed. Models of
two layers with four heads of 32, two of them local (window 64) except in "local" and "dense", of equally many weights.
"""

import ml_collections

from trainers.configs import base

WINDOW, CLUSTER_SIZE, NUM_LAYERS, HIDDEN_DIM = 64, 64, 2, 128
TOKENS_IN_A_STEP = 4096
REACH = NUM_LAYERS * (WINDOW - 1)  # of the local windows of all layers together
HEADS = {"num_heads": 2, "key_dim": 32}
LOCAL = {"layer": "LocalAttention", **HEADS, "window": WINDOW, "position": "rotary"}
# A unit of a feed-forward layer has 2 HIDDEN_DIM + 1 weights; a projection of keys of two heads has as many as 32.
INTERMEDIATE, UNITS_OF_KEYS = 512, 32


def _routing(**own):
    sizes = {"layer": "RoutingAttention", **HEADS, "cluster_size": CLUSTER_SIZE}
    return lambda clusters: {**sizes, "num_clusters": clusters, **own}


def _lsh(**own):
    sizes = {"layer": "LSHAttention", **HEADS, "bucket_size": CLUSTER_SIZE}
    return lambda clusters: {**sizes, "num_buckets": clusters, **own}


# What stands beside the two local heads, a function of the number of clusters.
KINDS = {
    "random": _routing(selection="random"),
    "lsh": _lsh(),
    "nearest": _routing(selection="nearest"),
    "top_k": _routing(selection="top_k"),  # as published, not causal
    "successors": _routing(use_successor_values=True),
    "random_successors": _routing(use_successor_values=True, selection="random"),
    "lsh_successors": _lsh(use_successor_values=True),
    "window_successors": lambda clusters: {
        "layer": "LocalAttention", **HEADS, "window": CLUSTER_SIZE, "use_successor_values": True
    },
}  # fmt: skip
WITHOUT = ("local", "strided", "dense")  # kinds of one layer alone


def parts_of(kind: str, length: int) -> list[dict]:
    """Returns the parts of the attention of each block."""
    if kind == "local":
        return [{**LOCAL, "num_heads": 4}]
    if kind == "dense":
        return [{**LOCAL, "num_heads": 4, "window": length}]
    if kind == "strided":  # half of the heads see the window, the others every 64th key
        return [{"layer": "StridedAttention", "num_heads": 4, "key_dim": 32, "stride": WINDOW, "position": "rotary"}]
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join([*WITHOUT, *KINDS])}. Received: kind={kind}.")
    return [dict(LOCAL), KINDS[kind](length // CLUSTER_SIZE)]


def get_config(name: str) -> ml_collections.ConfigDict:
    """Returns the configuration of a cell."""
    try:
        _, length, kind, steps = name.split("-")
        length, steps = int(length), int(steps)
    except ValueError:
        raise ValueError(f"`name` must be TEXT-LENGTH-KIND-STEPS. Received: name={name}.") from None
    config = base.get_config()
    config.data.update(tokenizer="subword", sequence_length=length, batch_size=max(TOKENS_IN_A_STEP // length, 1))
    parts = parts_of(kind, length)
    has_keys = kind in WITHOUT or parts[-1]["layer"] == "LocalAttention"
    intermediate = INTERMEDIATE + (0 if has_keys else UNITS_OF_KEYS)
    config.model.update(num_layers=NUM_LAYERS, hidden_dim=HIDDEN_DIM, intermediate_dim=intermediate)
    config.model.update(attention=parts, tie_embeddings=True)
    config.optimizer.update(name="adamw", learning_rate=3e-3, schedule="cosine", warmup_steps=50)
    config.train.update(num_steps=steps, log_every=100, evaluate_every=0, checkpoint_every=250)
    return config
