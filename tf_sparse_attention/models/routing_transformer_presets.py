"""The published sizes of the Routing Transformer."""

RT = "Routing Transformer (Roy et al., TACL 2021), published code"


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
    """Returns a preset of the published code: post-norm, relative positions, no biases in attention.

    `clusters` is the pair of their number and their size.
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
    """Returns a preset of the published code with the sizes of a language model on both sides.

    `dropout` is that of the result of each sublayer. Queries are keys in the decoder's own sequence alone, and
    attention to the source has no positions.
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

TRANSLATORS = {
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
