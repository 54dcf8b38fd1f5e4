"""The presets have the numbers that were published."""

from typing import NamedTuple

import numpy as np
import pytest

from tf_sparse_attention.models import Backbone, SequenceToSequence, presets


class Row(NamedTuple):
    """The numbers of a published configuration; those of routing are 0 where nothing routes."""

    length: int
    hidden: int
    embedding: int
    feed_forward: int
    layers: int
    local_heads: int
    routing_heads: int
    routing_layers: int  # the last ones
    clusters: int
    cluster_size: int
    block: int
    dropout: tuple  # of attention, feed-forward, embeddings and input tokens
    max_distance: int
    activation: str = "geglu"


class SparseRow(NamedTuple):
    """The numbers of a published Sparse Transformer."""

    length: int
    layers: int
    heads: int
    hidden: int
    dropout: float
    millions: float  # of parameters


SPARSE_ROWS = {
    "sparse_transformer_cifar10": SparseRow(3072, 128, 2, 256, 0.25, 59),
    "sparse_transformer_enwik8": SparseRow(12288, 30, 8, 512, 0.4, 95),
    "sparse_transformer_imagenet64": SparseRow(12288, 48, 16, 512, 0.01, 152),
    "sparse_transformer_music": SparseRow(65536, 48, 16, 512, 0.0, 152),
}


class ImageRow(NamedTuple):
    """The numbers of a published Routing Transformer for images."""

    length: int
    layers: int
    local_heads: int
    routing_heads: int
    hidden: int
    feed_forward: int
    dropout: float
    clusters: tuple | None = None  # number and size


IMAGE_ROWS = {
    "cifar10_local1d": ImageRow(3072, 12, 8, 0, 1024, 2048, 0.3),
    "cifar10_local2d": ImageRow(3072, 12, 8, 0, 256, 256, 0.0),
    "cifar10_local_cluster": ImageRow(3072, 12, 4, 4, 1024, 2048, 0.3, (6, 512)),
    "imagenet64_local1d": ImageRow(12288, 24, 16, 0, 1024, 2048, 0.3),
    "imagenet64_local_cluster": ImageRow(12288, 24, 12, 4, 1024, 2048, 0.3, (8, 2048)),
    "imagenet64_half_routing": ImageRow(12288, 24, 8, 8, 1024, 2048, 0.3, (8, 2048)),
}
NONE = (0, 0, 0, 0)
ROWS = {
    "enwik8_local8k": Row(8192, 1024, 1024, 3072, 22, 8, 0, 0, 0, 0, 256, (0.4, 0.4, 0, 0), 513),
    "enwik8_local_cluster8k": Row(8192, 1024, 1024, 3072, 12, 4, 4, 12, 16, 512, 256, NONE, 513),
    "enwik8_local_cluster12k": Row(12288, 1024, 1024, 3072, 12, 4, 4, 12, 48, 256, 128, NONE, 257),
    "wikitext103_local4k": Row(4096, 1024, 256, 3072, 14, 16, 0, 0, 0, 0, 256, (0.4, 0.4, 0.4, 0.25), 513),
    "wikitext103_local_cluster4k": Row(4096, 1024, 256, 3072, 14, 8, 8, 14, 8, 512, 256, (0.4, 0.4, 0.4, 0.25), 513),
    "wikitext103_local_cluster1k": Row(1024, 1024, 256, 3072, 20, 8, 8, 20, 2, 512, 256, (0.4, 0.4, 0.4, 0.2), 513),
    "pg19_local8k": Row(8192, 1032, 1032, 4096, 24, 8, 0, 0, 0, 0, 256, NONE, 513),
    "pg19_local_cluster8k": Row(8192, 1032, 1032, 4096, 22, 6, 2, 1, 16, 512, 256, NONE, 513),
    "pg19_routing_published": Row(8192, 1032, 1032, 4096, 22, 6, 2, 2, 16, 512, 256, NONE, 513, "relu"),
}


def parts_of(arguments):
    return {part["layer"]: part for part in arguments["attention"]["parts"]}


def row_of(name):
    """The numbers of a preset as it is."""
    arguments = presets.preset_arguments(name)
    parts = parts_of(arguments)
    local, routing = parts["LocalAttention"], parts.get("RoutingAttention", {})
    (dropout,) = {part["dropout"] for part in parts.values()}
    (max_distance,) = {part["max_distance"] for part in parts.values()}
    return Row(
        length=presets.PRESETS[name]["sequence_length"],
        hidden=arguments["hidden_dim"],
        embedding=arguments["embedding"]["dim"],
        feed_forward=arguments["intermediate_dim"],
        layers=arguments["num_layers"],
        local_heads=local["num_heads"],
        routing_heads=routing.get("num_heads", 0),
        routing_layers=arguments["num_layers"] - arguments["attention"]["num_local_layers"] if routing else 0,
        clusters=routing.get("num_clusters", 0),
        cluster_size=routing.get("cluster_size", 0),
        block=local["block_size"],
        dropout=(dropout, *(arguments["dropout"][kind] for kind in ("activation", "embedding", "tokens"))),
        max_distance=max_distance,
        activation=arguments["activation"],
    )


def test_every_preset_has_a_row():
    assert set(presets.PRESETS) == {*ROWS, *SPARSE_ROWS, *IMAGE_ROWS}


@pytest.mark.parametrize("name", IMAGE_ROWS)
def test_a_routing_transformer_for_images_has_the_published_numbers(name):
    arguments, row = presets.preset_arguments(name), IMAGE_ROWS[name]
    *routed, local = arguments["attention"]["parts"]
    assert presets.PRESETS[name]["sequence_length"] == row.length == np.prod(arguments["embedding"]["grid"])
    assert arguments["num_layers"] == row.layers and arguments["activation"] == "relu" and arguments["norm"] == "post"
    assert (arguments["hidden_dim"], arguments["intermediate_dim"]) == (row.hidden, row.feed_forward)
    assert (arguments["dropout"], local["num_heads"]) == (row.dropout, row.local_heads)
    assert sum(part["num_heads"] for part in routed) == row.routing_heads
    assert all((part["num_clusters"], part["cluster_size"]) == row.clusters for part in routed)
    assert all(part["key_dim"] * (row.local_heads + row.routing_heads) == row.hidden for part in [*routed, local])
    assert all(part["num_clusters"] * part["cluster_size"] >= row.length for part in routed)
    assert local.get("block_size") == 256 or (local["block_shape"], local["order"]) == ((16, 48), "blocks")


@pytest.mark.parametrize("name", SPARSE_ROWS)
def test_a_sparse_transformer_has_the_published_numbers(name):
    arguments, row = presets.preset_arguments(name), SPARSE_ROWS[name]
    (part,) = arguments["attention"]["parts"]
    assert presets.PRESETS[name]["sequence_length"] == row.length == np.prod(arguments["embedding"]["grid"])
    assert (arguments["num_layers"], part["num_heads"], arguments["hidden_dim"]) == (row.layers, row.heads, row.hidden)
    assert part.get("stride", part.get("block_size")) == 128
    assert arguments["dropout"] == row.dropout and arguments["activation"] == "quick_gelu" and arguments["remat"]
    assert part["value_dim"] * row.heads == row.hidden

    # The parameters of a block times the number of blocks: nothing large is built. A large test counts whole models.
    counts = [Backbone(256, **{**arguments, "num_layers": layers}).count_params() for layers in (1, 2)]
    head = row.hidden * 256 + 256
    total = counts[0] + (row.layers - 1) * (counts[1] - counts[0]) + head
    assert total / 1e6 == pytest.approx(row.millions, rel=0.02)


@pytest.mark.parametrize("name", ROWS)
def test_a_preset_has_the_published_numbers_and_nothing_else(name):
    assert row_of(name) == ROWS[name]
    arguments, row, parts = presets.preset_arguments(name), ROWS[name], parts_of(presets.preset_arguments(name))
    sizes = {"num_layers", "hidden_dim", "intermediate_dim"}
    assert set(arguments) == {*sizes, "embedding", "dropout", "activation", "attention", "norm"}
    assert not arguments["attention"]["reproduce_reference"] and set(arguments["embedding"]) == {"dim"}
    assert arguments["norm"] == "post" and (row.routing_heads or arguments["attention"]["num_local_layers"] == 0)
    common = {"layer", "num_heads", "key_dim", "use_bias", "position", "max_distance", "dropout"}
    own = {"LocalAttention": {"block_size"}, "RoutingAttention": {"num_clusters", "cluster_size", "selection"}}
    assert len(arguments["attention"]["parts"]) == len(parts)
    for layer, part in parts.items():
        assert set(part) == common | own[layer]
        assert part["key_dim"] * (row.local_heads + row.routing_heads) == row.hidden
        assert (part["use_bias"], part["position"]) == (False, "relative")


TRANSLATOR = "translate_local_cluster4k"
SMALL = {"num_layers": 2, "hidden_dim": 24, "intermediate_dim": 16}
SMALL |= {"attention": {"num_local_layers": 1}, "embedding": {"dim": 24}}


def inputs_of(length):
    ids = np.random.default_rng(0).integers(0, 30, (1, length))
    return {"encoder_token_ids": ids, "decoder_token_ids": ids}


def test_the_preset_of_translation_has_the_published_numbers():
    preset = presets.TRANSLATION_PRESETS[TRANSLATOR]
    assert preset["sequence_length"] == 4096 and preset["source"]
    for side in ("encoder", "decoder"):
        arguments, parts = preset[side], parts_of(preset[side])
        sizes = ("num_layers", "hidden_dim", "intermediate_dim", "norm", "activation")
        assert [arguments[name] for name in sizes] == [6, 1024, 4096, "post", "geglu"]
        assert (arguments["attention"]["num_local_layers"], arguments["dropout"]["residual"]) == (4, 0.3)
        assert (parts["LocalAttention"]["num_heads"], parts["LocalAttention"]["block_size"]) == (14, 256)
        routing = parts["RoutingAttention"]
        assert [routing[name] for name in ("num_heads", "num_clusters", "cluster_size")] == [2, 8, 512]
        assert {part["max_distance"] for part in parts.values()} == {513}
    assert preset["decoder"]["embedding"]["dim"] == 1024


def test_the_model_of_a_preset_of_translation_is_causal():
    model = SequenceToSequence.from_preset(TRANSLATOR, 30, **SMALL)
    assert model.backbone.causal_selection and model.source_vocabulary_size == 30 and model.encoder.embedding is None
    across = [block.cross_attention.parts for block in model.backbone.blocks]
    assert [part.num_heads for parts in across for part in parts] == [16, 2, 14]
    assert across[1][0].selection == "top_keys" and not across[1][0].share_qk
    assert model.backbone.cache_unsupported_reason is None
    assert tuple(model(inputs_of(9)).shape) == (1, 9, 30)


def test_the_published_form_of_translation_looks_ahead():
    model = SequenceToSequence.from_preset(TRANSLATOR, 30, source_vocabulary_size=20, reproduce_reference=True, **SMALL)
    assert not model.backbone.causal_selection and model.source_vocabulary_size == 20
    with pytest.warns(UserWarning, match="is not causal"):
        model({**inputs_of(9), "encoder_token_ids": np.ones((1, 9), "int32")})


def test_cross_attention_of_ones_own_replaces_that_of_a_preset():
    dense = [{"layer": "DenseAttention", "num_heads": 2, "key_dim": 8}]
    model = SequenceToSequence.from_preset(TRANSLATOR, 30, cross_attention=dense, **SMALL)
    assert [len(block.cross_attention.parts) for block in model.backbone.blocks] == [1, 1]
    with pytest.raises(ValueError, match="`name`"):
        SequenceToSequence.from_preset("pg19_local8k", 30)
