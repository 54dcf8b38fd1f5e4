"""Published model sizes as plain dictionaries.

Keys of a preset: "source", "sequence_length", "arguments" of `Backbone` without `vocabulary_size`, and "initialization"
if it is not the default. Presets of encoder-decoders have arguments for "encoder" and "decoder" instead. Their
"cross_attention" has the same number of local blocks as "attention".
"""

import dataclasses
from typing import Any

from tf_sparse_attention.models.backbone_options import (
    AttentionOptions,
    DropoutOptions,
    EmbeddingOptions,
    as_options,
    merge_arguments,
)
from tf_sparse_attention.models.blocks import list_block_parts, map_parts
from tf_sparse_attention.types import Config

RT = "Routing Transformer (Roy et al., TACL 2021), published code"
ST = "Sparse Transformer (Child et al. 2019)"


def _routing_transformer(
    source,
    sequence_length,
    num_layers,
    hidden_dim,
    intermediate_dim,
    num_local,
    num_routing=0,
    clusters=None,
    num_local_layers=0,
    block=256,
    max_distance=513,
    embedding_dim=None,
    activation="geglu",
    attention_dropout=0.0,
    activation_dropout=0.0,
    embedding_dropout=0.0,
    token_dropout=0.0,
):
    """Create a preset of the published code: post-norm, relative positions, no biases in attention.

    `clusters` is the pair of number and size of clusters.
    """
    common = {
        "key_dim": hidden_dim // (num_local + num_routing),
        "use_bias": False,
        "position": "relative",
        "max_distance": max_distance,
        "dropout": attention_dropout,
    }
    parts = [{"layer": "LocalAttention", "num_heads": num_local, "block_size": block, **common}]
    if num_routing:
        sizes = {"num_heads": num_routing, "num_clusters": clusters[0], "cluster_size": clusters[1]}
        # Routing heads come first, as in the published weights.
        parts.insert(0, {"layer": "RoutingAttention", **sizes, **common})
    arguments = {
        "num_layers": num_layers,
        "hidden_dim": hidden_dim,
        "intermediate_dim": intermediate_dim,
        "activation": activation,
        "attention": {"parts": parts, "num_local_layers": num_local_layers},
        "embedding": {"dim": hidden_dim if embedding_dim is None else embedding_dim},
        "norm": "post",
        "dropout": {"embedding": embedding_dropout, "activation": activation_dropout, "tokens": token_dropout},
    }
    return {"source": f"{RT}: {source}", "sequence_length": sequence_length, "arguments": arguments}


def _encoder_decoder(preset, dropout):
    """Create a preset of the published code with the sizes of a language model for encoder and decoder.

    `dropout` is the rate on the output of each sublayer. Only self-attention of the decoder shares queries and keys.
    Cross-attention has no positions.
    """
    decoder = preset["arguments"] | {"dropout": {**preset["arguments"]["dropout"], "residual": dropout}}
    routing, local = decoder["attention"]["parts"]
    routing = {**routing, "share_qk": False}
    across = [routing, {**local, "key_block_size": local["block_size"]}]
    across = [_without(part, "position", "max_distance") for part in across]
    encoder = _without(decoder, "embedding") | {"attention": {**decoder["attention"], "parts": [routing, local]}}
    return _without(preset, "arguments") | {
        "encoder": encoder | {"dropout": _without(decoder["dropout"], "embedding", "tokens"), "causal": False},
        "decoder": decoder | {"cross_attention": across},
    }


def _without(arguments, *names):
    return {name: value for name, value in arguments.items() if name not in names}


_WIKITEXT = {
    "hidden_dim": 1024,
    "intermediate_dim": 3072,
    "embedding_dim": 256,
    "attention_dropout": 0.4,
    "activation_dropout": 0.4,
    "embedding_dropout": 0.4,
}
_ENWIK8 = {"hidden_dim": 1024, "intermediate_dim": 3072}
_PG19 = {"hidden_dim": 1032, "intermediate_dim": 4096, "sequence_length": 8192}

ROUTING_TRANSFORMERS = {
    "enwik8_local8k": _routing_transformer(
        **_ENWIK8,
        num_layers=22,
        num_local=8,
        sequence_length=8192,
        attention_dropout=0.4,
        activation_dropout=0.4,
        source="enwik8_local8k",
    ),
    "enwik8_local_cluster8k": _routing_transformer(
        **_ENWIK8,
        num_layers=12,
        num_local=4,
        num_routing=4,
        clusters=(16, 512),
        sequence_length=8192,
        source="enwik8_local_cluster8k",
    ),
    "enwik8_local_cluster12k": _routing_transformer(
        **_ENWIK8,
        num_layers=12,
        num_local=4,
        num_routing=4,
        clusters=(48, 256),
        block=128,
        max_distance=257,
        sequence_length=12288,
        source="enwik8_local_cluster12k",
    ),
    "wikitext103_local4k": _routing_transformer(
        **_WIKITEXT,
        num_layers=14,
        num_local=16,
        token_dropout=0.25,
        sequence_length=4096,
        source="wikitext103_local4k",
    ),
    "wikitext103_local_cluster4k": _routing_transformer(
        **_WIKITEXT,
        num_layers=14,
        num_local=8,
        num_routing=8,
        clusters=(8, 512),
        token_dropout=0.25,
        sequence_length=4096,
        source="wikitext103_local_cluster4k",
    ),
    "wikitext103_local_cluster1k": _routing_transformer(
        **_WIKITEXT,
        num_layers=20,
        num_local=8,
        num_routing=8,
        clusters=(2, 512),
        token_dropout=0.2,
        sequence_length=1024,
        source="wikitext103_local_cluster1k",
    ),
    "pg19_local8k": _routing_transformer(**_PG19, num_layers=24, num_local=8, source="pg19_local8k"),
    "pg19_local_cluster8k": _routing_transformer(
        **_PG19,
        num_layers=22,
        num_local=6,
        num_routing=2,
        clusters=(16, 512),
        num_local_layers=21,
        source="pg19_local_cluster8k, whose last layer routes",
    ),
    "pg19_routing_published": _routing_transformer(
        **_PG19,
        num_layers=22,
        num_local=6,
        num_routing=2,
        clusters=(16, 512),
        num_local_layers=20,
        activation="relu",
        source="hparams.json of the published PG-19 checkpoint, whose last two layers route, as in the paper",
    ),
}

TRANSLATION_PRESETS = {
    "translate_local_cluster4k": _encoder_decoder(
        _routing_transformer(
            hidden_dim=1024,
            intermediate_dim=4096,
            num_layers=6,
            num_local=14,
            num_routing=2,
            clusters=(8, 512),
            num_local_layers=4,
            sequence_length=4096,
            source="translate_local_cluster4k, trained by Adam with betas 0.9 and 0.98 and the noam schedule",
        ),
        dropout=0.3,
    ),
}


def _image_routing_transformer(source, num_layers, heads, grid, clusters=None, hidden_dim=1024, block_shape=None):
    """Create a preset of the published code: post-norm, ReLU, embeddings of rows, columns and channels.

    Args:
        source: source of the numbers.
        num_layers: number of blocks.
        heads: pair of the numbers of local and routed heads.
        grid: (rows, columns, channels) of the images.
        clusters: pair of number and size of clusters.
        hidden_dim: channels of the residual stream. The size inside the feed-forward is twice `hidden_dim`, or equal
            with `block_shape`.
        block_shape: (rows, columns) of pixels per image block. None: local heads attend to blocks of the sequence.
    """
    height, width, channels = grid
    common = {"key_dim": hidden_dim // sum(heads), "use_bias": False}
    local = {"layer": "LocalAttention", "num_heads": heads[0], "block_size": 256, **common}
    axes = grid
    if block_shape is not None:
        rows, columns = block_shape
        local = {"layer": "LocalAttention2D", "num_heads": heads[0], **common, "order": "blocks"}
        local |= {"width": width * channels, "height": height, "block_shape": (rows, columns * channels)}
        axes = (height // rows, width // columns, rows, columns, channels)  # as in `ImageCodec.grid`
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

# Sequences come from an `ImageCodec` with 257 ids. Paper and code differ in the routed heads for ImageNet-64, so each
# has a preset.
IMAGE_ROUTING_TRANSFORMERS = {
    "cifar10_local1d": _image_routing_transformer(f"{RT}: cifar10_local1d", num_layers=12, heads=(8, 0), grid=_CIFAR10),
    "cifar10_local2d": _image_routing_transformer(
        f"{RT}: sparse_imagetransformer_local2d",
        num_layers=12,
        heads=(8, 0),
        grid=_CIFAR10,
        hidden_dim=256,
        block_shape=(16, 16),
    ),
    "cifar10_local_cluster": _image_routing_transformer(
        f"{RT}: cifar10_local_cluster", num_layers=12, heads=(4, 4), grid=_CIFAR10, clusters=(6, 512)
    ),
    "imagenet64_local1d": _image_routing_transformer(
        f"{RT}: imagenet_local1d", num_layers=24, heads=(16, 0), grid=_IMAGENET64
    ),
    "imagenet64_local_cluster": _image_routing_transformer(
        f"{RT}: imagenet_local_cluster", num_layers=24, heads=(12, 4), grid=_IMAGENET64, clusters=(8, 2048)
    ),
    "imagenet64_half_routing": _image_routing_transformer(
        "Routing Transformer (Roy et al., TACL 2021), where half of the 16 heads route; sizes of the published code",
        num_layers=24,
        heads=(8, 8),
        grid=_IMAGENET64,
        clusters=(8, 2048),
    ),
}


def _sparse_transformer(source, num_layers, num_heads, hidden_dim, grid, attention, dropout, half_size=False):
    """Create a preset of the paper: pre-activation blocks, embeddings of rows and columns, `remat` on.

    Args:
        source: section of the paper.
        num_layers, num_heads, hidden_dim: as in the paper.
        grid: axes of the grid embedding, fastest last. Their product is the sequence length.
        attention: layer and options of the pattern.
        dropout: rate on the output of each sublayer.
        half_size: whether to halve the sizes of feed-forward, queries and keys.
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

# The paper does not specify the form of heads (equations 6 to 8). All forms have equal parameter counts.
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
        "section 7.4, 152 million parameters for 65,536 samples; sizes as for ImageNet, because the paper gives none",
        num_layers=48,
        num_heads=16,
        hidden_dim=512,
        grid=(512, 128),
        attention={**_STRIDED, "heads": "interleaved"},
        dropout=0.0,
    ),
}


def _attention(layer, num_heads, num_key_value_heads, key_dim, **settings):
    """Return attention parts of a block: one part with rotary positions."""
    common = {"num_heads": num_heads, "num_key_value_heads": num_key_value_heads, "key_dim": key_dim}
    return [{"layer": layer, **common, "position": "rotary", **settings}]


def _gemma_3(source, num_layers, heads, window, **sizes):
    """Create a preset of Gemma 3: of every six layers, five have a window and short wavelengths, the last is dense.

    `heads` are (query heads, key-value heads, head size).
    """
    common = {"use_bias": False, "use_query_key_norm": True}
    local = _attention("LocalAttention", *heads, window=window, **common)
    whole = _attention("DenseAttention", *heads, rotary_max_wavelength=1e6, **common)
    attention = [whole if index % 6 == 5 else local for index in range(num_layers)]
    return _preset(source, num_layers, attention, norm="pre_and_post_rms", activation="geglu", **sizes)


def _gpt_oss(source, num_layers, heads, window, **sizes):
    """Create a preset of gpt-oss: layers 0, 2, 4 and so on have a window; all have sinks and YaRN."""
    rotary = {"rotary_max_wavelength": 1.5e5, "rotary_type": "yarn", "rotary_scaling_factor": 32.0}
    common = {"use_sink": True, **rotary, "rotary_truncate": False}
    local = _attention("LocalAttention", *heads, window=window, **common)
    whole = _attention("DenseAttention", *heads, **common)
    attention = [whole if index % 2 else local for index in range(num_layers)]
    norm = {"placement": "pre_rms", "epsilon": 1e-5}
    return _preset(source, num_layers, attention, norm=norm, activation="swiglu", **sizes)


def _preset(source, num_layers, attention, sequence_length, **arguments):
    arguments = {"num_layers": num_layers, "attention": attention, **arguments}
    return {"source": source, "sequence_length": sequence_length, "arguments": arguments}


_GEMMA_3 = "Gemma 3 technical report (2025, arXiv 2503.19786)"
_GPT_OSS = "gpt-oss model card (OpenAI 2025, arXiv 2508.10925)"

DECODER_PRESETS = {
    "gemma3_1b": _gemma_3(
        f"{_GEMMA_3}, the model of one billion parameters",
        num_layers=26,
        heads=(4, 1, 256),
        window=512,
        hidden_dim=1152,
        intermediate_dim=6912,
        sequence_length=32768,
    ),
    "gemma3_tiny": _gemma_3(
        f"the shape of gemma3_1b, small enough for a CPU; {_GEMMA_3}",
        num_layers=6,
        heads=(4, 2, 16),
        window=64,
        hidden_dim=64,
        intermediate_dim=192,
        sequence_length=1024,
    ),
    "gpt_oss_20b_dense": _gpt_oss(
        f"{_GPT_OSS}, gpt-oss-20b with one feed-forward instead of 32 experts",
        num_layers=24,
        heads=(64, 8, 64),
        window=128,
        hidden_dim=2880,
        intermediate_dim=2880,
        sequence_length=131072,
    ),
    "gpt_oss_tiny": _gpt_oss(
        f"the shape of gpt_oss_20b_dense, small enough for a CPU; {_GPT_OSS}",
        num_layers=4,
        heads=(8, 2, 16),
        window=32,
        hidden_dim=64,
        intermediate_dim=64,
        sequence_length=1024,
    ),
}


PRESETS = {**ROUTING_TRANSFORMERS, **IMAGE_ROUTING_TRANSFORMERS, **SPARSE_TRANSFORMERS}


def preset_arguments(name: str, reproduce_reference: bool = False, **overrides: Any) -> Config:
    """Return the arguments of `Backbone` of a preset, without `vocabulary_size`.

    Args:
        name: a key of `PRESETS` or `DECODER_PRESETS`.
        reproduce_reference: whether routed heads select as published ("top_k"), which is not causal. Default False:
            routed heads select "nearest".
        **overrides: arguments that replace arguments of the preset. A dictionary for `attention`, `embedding`, `norm`
            or `dropout` changes only the options that it names.

    Raises:
        ValueError: if `name` is unknown.
    """
    presets = PRESETS | DECODER_PRESETS
    if name not in presets:
        raise ValueError(f"`name` must be one of {sorted(presets)}. Received: name={name!r}.")
    arguments = dict(presets[name]["arguments"])
    arguments["attention"] = _routed(arguments["attention"], "nearest", reproduce_reference)
    return merge_arguments(arguments, overrides)


def translation_arguments(name: str, reproduce_reference: bool = False, **overrides: Any) -> tuple[Config, Config]:
    """Return the arguments of `Backbone` of the encoder and of the decoder of a preset, without `vocabulary_size`.

    Args:
        name: a key of `TRANSLATION_PRESETS`.
        reproduce_reference: whether routed heads select as published and padding is masked only as keys. The model is
            then not causal. Default False: routed heads select "nearest" in the decoder, "top_keys" in its
            cross-attention, and "top_k" in the encoder.
        **overrides: arguments that replace arguments of both sides of the preset, as in `preset_arguments`.
            `cross_attention`, `dim` of `embedding` and `tokens` of `dropout` only change the decoder.

    Raises:
        ValueError: if `name` is unknown.
    """
    if name not in TRANSLATION_PRESETS:
        raise ValueError(f"`name` must be one of {sorted(TRANSLATION_PRESETS)}. Received: name={name!r}.")
    preset, padding = TRANSLATION_PRESETS[name], {"reproduce_reference": reproduce_reference}
    encoder, decoder = dict(preset["encoder"]), dict(preset["decoder"])
    encoder["attention"] = _routed(encoder["attention"], "top_k", reproduce_reference) | padding
    decoder["attention"] = _routed(decoder["attention"], "nearest", reproduce_reference) | padding
    across = _routed({"parts": decoder.pop("cross_attention")}, "top_keys", reproduce_reference)["parts"]
    decoder = merge_arguments(decoder, overrides)
    if "cross_attention" not in decoder:
        num_local_layers = as_options(AttentionOptions, "attention", decoder["attention"]).num_local_layers
        decoder["cross_attention"] = list_block_parts(across, decoder["num_layers"], num_local_layers)
    overrides = {name: value for name, value in overrides.items() if name != "cross_attention"}
    encoder = merge_arguments({"embedding": None, **encoder}, overrides)
    embedding = as_options(EmbeddingOptions, "embedding", encoder["embedding"])
    dropout = as_options(DropoutOptions, "dropout", encoder["dropout"])
    changes = {
        "embedding": dataclasses.replace(embedding, dim=None),
        "dropout": dataclasses.replace(dropout, tokens=0.0),
    }
    return {**encoder, **changes}, decoder


def _routed(attention, selection, reproduce_reference):
    """Return attention options as a dictionary, with `selection` or the published selection of routed heads."""
    chosen = {"selection": "top_k", "reproduce_reference": True} if reproduce_reference else {"selection": selection}
    options = vars(as_options(AttentionOptions, "attention", attention))
    parts = map_parts(
        lambda part: {**part, **chosen} if part["layer"] == "RoutingAttention" else dict(part), options["parts"]
    )
    return {**options, "parts": parts}
