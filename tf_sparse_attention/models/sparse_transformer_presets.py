"""The published sizes of the Sparse Transformer."""

ST = "Sparse Transformer (Child et al. 2019)"


def _sparse_transformer(source, num_layers, num_heads, hidden_dim, grid, attention, dropout, half_size=False):
    """Returns a preset of the paper: pre-activation blocks, embeddings of rows and columns, `remat` on.

    Args:
        source: section of the paper.
        num_layers, num_heads, hidden_dim: as there.
        grid: axes of the embedding of positions, the last one running fastest; their product is the sequence.
        attention: the layer and its pattern.
        dropout: rate on what a sublayer adds.
        half_size: whether feed-forward, queries and keys have half of their usual sizes.
    """
    head = hidden_dim // num_heads
    sizes = {"num_heads": num_heads, "key_dim": head // 2 if half_size else head, "value_dim": head}
    length = 1
    for size in grid:
        length *= size
    arguments = {
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "intermediate_dim": (2 if half_size else 4) * hidden_dim,
        "activation": "quick_gelu",
        "attention": [{**attention, **sizes}],
        "embedding": {"grid": grid},
        "dropout": dropout,
        "norm": {"placement": "pre", "epsilon": 1e-5},
        "remat": True,
    }
    return {
        "source": f"{ST}: {source}",
        "sequence_length": length,
        "initialization": "depth",
        "arguments": arguments,
    }


_STRIDED = {"layer": "StridedAttention", "stride": 128}

# The paper does not say which form of heads (its equations 6 to 8) these models have; parameters do not depend on it.
SPARSE_TRANSFORMERS = {
    "sparse_transformer_cifar10": _sparse_transformer(
        "section 7.1, 59 million parameters",
        num_layers=128,
        num_heads=2,
        hidden_dim=256,
        half_size=True,
        grid=(32, 32, 3),
        attention={**_STRIDED, "heads": "split"},
        dropout=0.25,
    ),
    "sparse_transformer_enwik8": _sparse_transformer(
        "section 7.2, 95 million parameters",
        num_layers=30,
        num_heads=8,
        hidden_dim=512,
        grid=(96, 128),
        attention={"layer": "FixedAttention", "block_size": 128, "num_summary": 32, "num_groups": 4, "heads": "split"},
        dropout=0.4,
    ),
    "sparse_transformer_imagenet64": _sparse_transformer(
        "section 7.3, 152 million parameters",
        num_layers=48,
        num_heads=16,
        hidden_dim=512,
        grid=(64, 64, 3),
        attention={**_STRIDED, "heads": "split"},
        dropout=0.01,
    ),
    "sparse_transformer_music": _sparse_transformer(
        "section 7.4, 152 million parameters for 65,536 samples; sizes as for ImageNet, since the paper gives none",
        num_layers=48,
        num_heads=16,
        hidden_dim=512,
        grid=(512, 128),
        attention={**_STRIDED, "heads": "interleaved"},
        dropout=0.0,
    ),
}
