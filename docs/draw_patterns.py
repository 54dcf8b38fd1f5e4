"""Draws docs/patterns.png, the picture of the patterns in the README: `python -m docs.draw_patterns`."""

import pathlib

import matplotlib

matplotlib.use("agg")

import numpy as np
from matplotlib import pyplot

from tf_sparse_attention.analysis import draw_pattern
from tf_sparse_attention.layers import LocalAttention, MixedAttention, RoutingAttention

PICTURE = pathlib.Path(__file__).with_name("patterns.png")
LENGTH = 64
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


def main(path=PICTURE):
    figure, axes = pyplot.subplots(2, 3, figsize=(8.4, 6.6), layout="constrained")
    for (name, (caption, make)), axis in zip(PANELS.items(), axes.flat, strict=True):
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
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"wrote {path.name}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
