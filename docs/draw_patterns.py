"""Draws docs/patterns.png, the picture in the README: python -m docs.draw_patterns"""

import pathlib

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot

from tf_sparse_attention.analysis import draw_pattern
from tf_sparse_attention.layers import LocalAttention, RoutingAttention

LENGTH = 64
ROUTED = {"num_heads": 1, "key_dim": 16, "num_clusters": 4, "seed": 1}
PANELS = {
    "local, blocks": lambda: LocalAttention(1, 16, block_size=16),
    "local, window": lambda: LocalAttention(1, 16, window=16),
    "routing, nearest": lambda: RoutingAttention(**ROUTED, cluster_size=8, selection="nearest", mask_self=False),
    "routing, random": lambda: RoutingAttention(**ROUTED, cluster_size=8, selection="random", mask_self=False),
    "routing, top_k (not causal)": lambda: RoutingAttention(**ROUTED, cluster_size=16, selection="top_k"),
}


def main():
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(2.4 * len(PANELS), 2.8), layout="constrained")
    for (name, make), panel in zip(PANELS.items(), axes, strict=True):
        # The published selection is drawn without its causal mask: under one it hides only part of what it leaks.
        draw_pattern(make(), LENGTH, use_causal_mask="top_k" not in name, axes=[panel])
        panel.set_title(name, fontsize=10)
    path = pathlib.Path(__file__).with_name("patterns.png")
    figure.savefig(path, dpi=110)
    print(f"wrote {path.name}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
