"""Draws the pictures of the patterns, docs/patterns.png and docs/pictures: `python -m docs.draw_patterns`.

A picture shows `layer.attention_pattern`, the dense mask that the tests compare the fast computation with. The picture
of clustered attention, which masks no key, shows its weights.
"""

import pathlib

import matplotlib

matplotlib.use("agg")

import keras
import numpy as np
from matplotlib import pyplot

from tf_sparse_attention.analysis import draw_pattern, draw_weights
from tf_sparse_attention.layers import (
    AllAttention,
    ClusteredAttention,
    FixedAttention,
    GlobalLocalAttention,
    LocalAttention,
    LocalAttention2D,
    LSHAttention,
    MixedAttention,
    RoutingAttention,
    StridedAttention,
)

FOLDER = pathlib.Path(__file__).parent
LENGTH = 64
SEED = 0
FEATURES = 32
HEAD = {"num_heads": 1, "key_dim": 16, "seed": 0}
ROUTED = {**HEAD, "num_clusters": 4, "cluster_size": 8, "mask_self": False}


def text_on_few_subjects(num_subjects=4, noise=0.35, seed=6):
    """Returns float32 (1, LENGTH, FEATURES): tokens of four subjects that the text leaves and comes back to."""
    random = np.random.default_rng(seed)
    subjects = random.normal(size=(num_subjects, FEATURES))
    spoken_of = np.repeat(random.integers(num_subjects, size=LENGTH), random.integers(1, 5, size=LENGTH))[:LENGTH]
    return (subjects[spoken_of] + noise * random.normal(size=(LENGTH, FEATURES)))[None].astype("float32")


def routed(**arguments):
    """Returns a routing layer whose centroids are tokens of the text, one of each subject with this seed."""
    keras.utils.set_random_seed(SEED)  # of the projections, so that a picture is the same each time
    layer = RoutingAttention(**{**ROUTED, **arguments})
    layer.start_from_data(text_on_few_subjects(), seed=9)
    return layer


PANELS = {
    "Local blocks": ("its block and the one before", lambda: LocalAttention(**HEAD, block_size=16)),
    "Local window": ("the last 16 positions", lambda: LocalAttention(**HEAD, window=16)),
    "Routing, nearest": ("the last 8 tokens of its cluster", lambda: routed(selection="nearest")),
    "Routing, top_k": ("16 best tokens a cluster: not causal", lambda: routed(selection="top_k", cluster_size=16)),
    "Routing, random": ("clusters that ignore the content", lambda: RoutingAttention(**ROUTED, selection="random")),
    "Mixed": (
        "a window head and a routed head",
        lambda: MixedAttention([LocalAttention(**HEAD, window=8), routed(selection="nearest", use_output_bias=False)]),
    ),
}


def global_local(**arguments):
    return GlobalLocalAttention(**HEAD, **arguments)


def spanned(**arguments):
    """Returns an all-attention layer whose four heads have spans of different length."""
    layer = AllAttention(
        4, 16, num_persistent=16, window=48, adaptive_span={"ramp": 4, "initial": 0.0}, seed=0, **arguments
    )
    layer.build((None, None, FEATURES))
    layer.span.fraction.assign([0.0, 0.15, 0.4, 0.9])
    return layer


HASHED = {**HEAD, "num_buckets": 4, "bucket_size": 8, "mask_self": False}
IMAGE = {**HEAD, "width": 8, "block_shape": (2, 2)}  # LENGTH pixels are eight rows of it
HEADS = {"num_heads": 2, "key_dim": 16, "seed": 0}
# A file of docs/pictures: for each panel its caption, the layer, whether it is causal, and the head that is drawn.
PICTURES = {
    "local": [
        ("blocks of 16, causal", lambda: LocalAttention(**HEAD, block_size=16), True, 0),
        ("window of 16, causal", lambda: LocalAttention(**HEAD, window=16), True, 0),
        ("window of 8, both sides", lambda: LocalAttention(**HEAD, window=8), False, 0),
    ],
    "global": [
        ("window of 8, first token global", lambda: global_local(window=8, num_first_global=1), False, 0),
        ("blocks of 8, first 4 global", lambda: global_local(block_size=8, num_first_global=4), False, 0),
    ],
    "image": [
        ("rows of 8 pixels, causal", lambda: LocalAttention2D(**IMAGE), True, 0),
        ("rows of 8 pixels, both sides", lambda: LocalAttention2D(**IMAGE), False, 0),
        ("2 x 2 blocks in order, causal", lambda: LocalAttention2D(**IMAGE, order="blocks"), True, 0),
        ("2 x 2 blocks in order, both sides", lambda: LocalAttention2D(**IMAGE, order="blocks"), False, 0),
    ],
    "strided": [
        ("split: first half of the heads", lambda: StridedAttention(**HEADS, stride=8), True, 0),
        ("split: second half", lambda: StridedAttention(**HEADS, stride=8), True, 1),
        ("merged", lambda: StridedAttention(**HEADS, stride=8, heads="merged"), True, 0),
        ("merged, both sides", lambda: StridedAttention(**HEADS, stride=8, heads="merged"), False, 0),
    ],
    "fixed": [
        ("split: first half of the heads", lambda: FixedAttention(**HEADS, block_size=8, num_summary=2), True, 0),
        ("split: second half", lambda: FixedAttention(**HEADS, block_size=8, num_summary=2), True, 1),
        ("merged", lambda: FixedAttention(**HEADS, block_size=8, num_summary=2, heads="merged"), True, 0),
        ("merged, both sides", lambda: FixedAttention(**HEADS, block_size=8, num_summary=2, heads="merged"), False, 0),
    ],
    "routing": [
        ("nearest: last 8 tokens of the cluster", lambda: routed(selection="nearest"), True, 0),
        ("top_k: 16 best tokens a cluster", lambda: routed(selection="top_k", cluster_size=16), False, 0),
        (
            "top_keys: 16 best keys of the cluster",
            lambda: routed(selection="top_keys", cluster_size=16, share_qk=False),
            False,
            0,
        ),
        ("strided: 16 tokens of all scores", lambda: routed(selection="strided", cluster_size=16), False, 0),
        (
            "hash: 16 tokens of a bucket",
            lambda: RoutingAttention(**{**ROUTED, "cluster_size": 16}, selection="hash"),
            False,
            0,
        ),
        ("random clusters", lambda: RoutingAttention(**ROUTED, selection="random"), True, 0),
    ],
    "successors": [
        ("nearest: last 8 tokens of the cluster", lambda: routed(selection="nearest"), True, 0),
        ("successor values: of the 8 before it", lambda: routed(mask_self=None, use_successor_values=True), True, 0),
        ("a window's: the 8 before it", lambda: LocalAttention(**HEAD, window=8, use_successor_values=True), True, 0),
    ],
    "hashing": [
        ("band: last 8 tokens of the bucket", lambda: LSHAttention(**HASHED), True, 0),
        ("band, two rounds", lambda: LSHAttention(**HASHED, num_rounds=2), True, 0),
        ("chunks of 8, both sides", lambda: LSHAttention(**HASHED, selection="chunks"), False, 0),
    ],
    "all_attention": [(f"window of 48, z = {z}", spanned, True, head) for head, z in enumerate((0.0, 0.15, 0.4, 0.9))],
}


GROUPED = ("routing", "successors", "hashing")  # pictures whose groups have colours
# Panels of clustered attention: caption and what approximates the weights, drawn for the same kernels.
CLUSTERED = [
    ("every query by itself", {"num_clusters": LENGTH, "num_bits": 256}),
    ("4 clusters", {"num_clusters": 4}),
    ("4 clusters, 8 best keys", {"num_clusters": 4, "top_k": 8}),
]


def main(folder=FOLDER):
    (folder / "pictures").mkdir(exist_ok=True)
    draw_overview(folder / "patterns.png")
    draw_clustered(folder / "pictures" / "clustered.png")
    for name, panels in PICTURES.items():
        draw_panels(folder / "pictures" / f"{name}.png", panels, show_groups=name in GROUPED)


def draw_panels(path, panels, show_groups):
    """Draws one head of a layer in each panel."""
    figure, axes = panels_of(panels)
    for (caption, make, causal, head), axis in zip(panels, axes, strict=True):
        keras.utils.set_random_seed(SEED)
        layer = make()
        everywhere = [pyplot.figure().add_subplot() for _ in range(layer.num_heads)]
        everywhere[head] = axis
        options = {"use_causal_mask": causal, "inputs": text_on_few_subjects(), "show_groups": show_groups}
        draw_pattern(layer, LENGTH, axes=everywhere, **options)
        axis.set_xlabel(caption, fontsize=10)
    save(figure, path)


def draw_clustered(path):
    """Draws the weights of one head of clustered attention next to the weights of dense attention."""
    figure, axes = panels_of(CLUSTERED)
    text = text_on_few_subjects() * 3  # weights far from equal
    for (caption, arguments), axis in zip(CLUSTERED, axes, strict=True):
        keras.utils.set_random_seed(SEED)
        draw_weights(ClusteredAttention(**HEAD, **arguments), LENGTH, use_causal_mask=False, inputs=text, axes=[axis])
        axis.set_xlabel(caption, fontsize=10)
    save(figure, path)


def panels_of(captioned):
    """Returns a new figure with a row of panels, and their axes."""
    return pyplot.subplots(1, len(captioned), figsize=(2.7 * len(captioned), 3.0), layout="constrained")


def draw_overview(path):
    figure, axes = pyplot.subplots(2, 3, figsize=(8.4, 6.6), layout="constrained")
    for (name, (caption, make)), axis in zip(PANELS.items(), axes.flat, strict=True):
        keras.utils.set_random_seed(SEED)
        draw_pattern(
            make(),
            LENGTH,
            # The published selection is drawn without a causal mask, which would hide only part of what it leaks.
            use_causal_mask="top_k" not in name,
            inputs=text_on_few_subjects(),
            overlay=name == "Mixed",
            axes=[axis],
        )
        axis.set_title(name, fontsize=12, fontweight="bold", pad=6)
        axis.set_xlabel(caption, fontsize=10)
    figure.supxlabel(
        "Rows are queries, columns keys, 64 tokens of four subjects. A colour is a cluster; grey is the future.",
        fontsize=10,
    )
    save(figure, path)


def save(figure, path):
    figure.savefig(path, dpi=110)
    pyplot.close("all")
    print(f"wrote {path.name}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
