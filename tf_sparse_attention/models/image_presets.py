"""The published sizes of the Routing Transformer for images."""

CODE = "Routing Transformer (Roy et al., TACL 2021), published code"


def _routing_transformer(source, num_layers, heads, grid, clusters=None, hidden_dim=1024, block_shape=None):
    """Returns a preset of the published code: post-norm, ReLU, embeddings of rows, columns and channels.

    Args:
        source: where the numbers are from.
        num_layers: number of blocks.
        heads: pair, those that are local and those that are routed.
        grid: (rows, columns, channels) of the images.
        clusters: pair of their number and their size.
        hidden_dim: size of the vectors between blocks; a feed-forward layer is twice as large, or as large in the small
            model with blocks of images.
        block_shape: rows and columns of pixels of a block of the image. None: heads are local in the sequence.
    """
    height, width, channels = grid
    common = {"key_dim": hidden_dim // sum(heads), "use_bias": False}
    local = {"layer": "LocalAttention", "num_heads": heads[0], "block_size": 256, **common}
    axes = grid
    if block_shape is not None:
        rows, columns = block_shape
        local = {"layer": "LocalAttention2D", "num_heads": heads[0], **common, "order": "blocks"}
        local |= {"width": width * channels, "height": height, "block_shape": (rows, columns * channels)}
        axes = (height // rows, width // columns, rows, columns, channels)  # those of `ImageCodec.grid`
    parts = [local]
    if clusters is not None:
        sizes = {"num_heads": heads[1], "num_clusters": clusters[0], "cluster_size": clusters[1]}
        parts.insert(0, {"layer": "RoutingAttention", **sizes, **common})
    arguments = {
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "intermediate_dim": 2 * hidden_dim if block_shape is None else hidden_dim,
        "activation": "relu",
        "attention": parts,
        "embedding": {"grid": axes},
        "norm": "post",
        "dropout": 0.3 if block_shape is None else 0.0,
    }
    return {"source": source, "sequence_length": height * width * channels, "arguments": arguments}


_CIFAR10, _IMAGENET64 = (32, 32, 3), (64, 64, 3)

# Sequences are those of an `ImageCodec`, 257 ids. Where the paper and the code differ, in the routed heads for
# ImageNet-64, there is a preset of each.
IMAGE_ROUTING_TRANSFORMERS = {
    "cifar10_local1d": _routing_transformer(f"{CODE}: cifar10_local1d", num_layers=12, heads=(8, 0), grid=_CIFAR10),
    "cifar10_local2d": _routing_transformer(
        f"{CODE}: sparse_imagetransformer_local2d",
        num_layers=12,
        heads=(8, 0),
        grid=_CIFAR10,
        hidden_dim=256,
        block_shape=(16, 16),
    ),
    "cifar10_local_cluster": _routing_transformer(
        f"{CODE}: cifar10_local_cluster", num_layers=12, heads=(4, 4), grid=_CIFAR10, clusters=(6, 512)
    ),
    "imagenet64_local1d": _routing_transformer(
        f"{CODE}: imagenet_local1d", num_layers=24, heads=(16, 0), grid=_IMAGENET64
    ),
    "imagenet64_local_cluster": _routing_transformer(
        f"{CODE}: imagenet_local_cluster", num_layers=24, heads=(12, 4), grid=_IMAGENET64, clusters=(8, 2048)
    ),
    "imagenet64_half_routing": _routing_transformer(
        "Routing Transformer (Roy et al., TACL 2021), where half of the 16 heads route; sizes of the published code",
        num_layers=24,
        heads=(8, 8),
        grid=_IMAGENET64,
        clusters=(8, 2048),
    ),
}
