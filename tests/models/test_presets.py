"""The presets have the numbers that were published."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.models import DECODER_PRESETS, Backbone, LanguageModel, SequenceToSequence, presets
from tf_sparse_attention.models.presets import preset_arguments

# Length, layers, local heads, routed heads, hidden size, feed-forward, dropout, number and size of clusters.
IMAGES = {
    "cifar10_local1d": (3072, 12, 8, 0, 1024, 2048, 0.3, None),
    "cifar10_local2d": (3072, 12, 8, 0, 256, 256, 0.0, None),
    "cifar10_local_cluster": (3072, 12, 4, 4, 1024, 2048, 0.3, (6, 512)),
    "imagenet64_local1d": (12288, 24, 16, 0, 1024, 2048, 0.3, None),
    "imagenet64_local_cluster": (12288, 24, 12, 4, 1024, 2048, 0.3, (8, 2048)),
    "imagenet64_half_routing": (12288, 24, 8, 8, 1024, 2048, 0.3, (8, 2048)),
}
# Length, layers, heads, hidden size, dropout, millions of parameters.
SPARSE = {
    "sparse_transformer_cifar10": (3072, 128, 2, 256, 0.25, 59),
    "sparse_transformer_enwik8": (12288, 30, 8, 512, 0.4, 95),
    "sparse_transformer_imagenet64": (12288, 48, 16, 512, 0.01, 152),
    "sparse_transformer_music": (65536, 48, 16, 512, 0.0, 152),
}
# Length, layers, local heads, routed heads, layers without routed heads, number and size of clusters, block, and
# dropout of attention, feed-forward, embeddings and input tokens.
ENWIK8 = {
    "enwik8_local8k": (8192, 22, 8, 0, 0, None, 256, (0.4, 0.4, 0, 0)),
    "enwik8_local_cluster8k": (8192, 12, 4, 4, 0, (16, 512), 256, (0, 0, 0, 0)),
    "enwik8_local_cluster12k": (12288, 12, 4, 4, 0, (48, 256), 128, (0, 0, 0, 0)),
}
WIKITEXT = {
    "wikitext103_local4k": (4096, 14, 16, 0, 0, None, 256, (0.4, 0.4, 0.4, 0.25)),
    "wikitext103_local_cluster4k": (4096, 14, 8, 8, 0, (8, 512), 256, (0.4, 0.4, 0.4, 0.25)),
    "wikitext103_local_cluster1k": (1024, 20, 8, 8, 0, (2, 512), 256, (0.4, 0.4, 0.4, 0.2)),
}
PG19 = {
    "pg19_local8k": (8192, 24, 8, 0, 0, None, 256, (0, 0, 0, 0)),
    "pg19_local_cluster8k": (8192, 22, 6, 2, 21, (16, 512), 256, (0, 0, 0, 0)),
    "pg19_routing_published": (8192, 22, 6, 2, 20, (16, 512), 256, (0, 0, 0, 0)),
}


def parts_of(arguments):
    return {part["layer"]: part for part in arguments["attention"]["parts"]}


def routed_heads(count, clusters):
    return {"layer": "RoutingAttention", "num_heads": count, "num_clusters": clusters[0], "cluster_size": clusters[1]}


def test_every_preset_has_a_row():
    assert set(presets.PRESETS) == {*ENWIK8, *WIKITEXT, *PG19, *SPARSE, *IMAGES}


@pytest.mark.parametrize("name", IMAGES)
def test_a_routing_transformer_for_images_has_the_published_numbers(name):
    length, layers, num_local, num_routed, hidden, feed_forward, dropout, clusters = IMAGES[name]
    arguments = presets.preset_arguments(name)
    *routed, local = arguments["attention"]["parts"]
    assert presets.PRESETS[name]["sequence_length"] == length == np.prod(arguments["embedding"]["grid"])
    sizes = {"num_layers": layers, "hidden_dim": hidden, "intermediate_dim": feed_forward, "dropout": dropout}
    assert sizes | {"activation": "relu", "norm": "post"} == {
        name: value for name, value in arguments.items() if name not in ("attention", "embedding")
    }
    common = {"key_dim": hidden // (num_local + num_routed), "use_bias": False}
    expected = [routed_heads(num_routed, clusters) | common | {"selection": "nearest"}] if num_routed else []
    assert routed == expected and local.items() >= {"num_heads": num_local, **common}.items()
    assert local.get("block_size") == 256 or (local["block_shape"], local["order"]) == ((16, 48), "blocks")


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_transformer_has_the_published_numbers(name):
    length, layers, heads, hidden, dropout, millions = SPARSE[name]
    arguments = presets.preset_arguments(name)
    (part,) = arguments["attention"]["parts"]
    assert presets.PRESETS[name]["sequence_length"] == length == np.prod(arguments["embedding"]["grid"])
    assert (arguments["num_layers"], part["num_heads"], arguments["hidden_dim"]) == (layers, heads, hidden)
    assert part.get("stride", part.get("block_size")) == 128
    assert arguments["dropout"] == dropout and arguments["activation"] == "quick_gelu" and arguments["remat"]
    assert part["value_dim"] * heads == hidden

    # The parameters of a block times the number of blocks: nothing large is built. A large test counts whole models.
    with keras.StatelessScope(initialize_variables=False):  # weights of a shape and no values
        counts = [Backbone(256, **{**arguments, "num_layers": layers}).count_params() for layers in (1, 2)]
    total = counts[0] + (layers - 1) * (counts[1] - counts[0]) + hidden * 256 + 256
    assert total / 1e6 == pytest.approx(millions, rel=0.02)


@pytest.mark.parametrize("name", [*ENWIK8, *WIKITEXT, *PG19])
def test_a_preset_has_the_published_numbers_and_nothing_else(name):
    length, layers, num_local, num_routed, skipped, clusters, block, rates = (ENWIK8 | WIKITEXT | PG19)[name]
    hidden, feed_forward = (1032, 4096) if name in PG19 else (1024, 3072)
    common = {"key_dim": hidden // (num_local + num_routed), "use_bias": False, "dropout": rates[0]}
    common |= {"position": "relative", "max_distance": 2 * block + 1}
    parts = [{"layer": "LocalAttention", "num_heads": num_local, "block_size": block, **common}]
    if num_routed:
        parts.insert(0, routed_heads(num_routed, clusters) | common | {"selection": "nearest"})
    assert presets.PRESETS[name]["sequence_length"] == length
    assert presets.preset_arguments(name) == {
        "num_layers": layers,
        "hidden_dim": hidden,
        "intermediate_dim": feed_forward,
        "embedding": {"dim": 256 if name in WIKITEXT else hidden},
        "attention": {"parts": parts, "num_local_layers": skipped, "reproduce_reference": False},
        "dropout": {"activation": rates[1], "embedding": rates[2], "tokens": rates[3]},
        "activation": "relu" if name == "pg19_routing_published" else "geglu",
        "norm": "post",
    }


TRANSLATOR = "translate_local_cluster4k"
SMALL = {"num_layers": 2, "hidden_dim": 24, "intermediate_dim": 16}
SMALL |= {"attention": {"num_local_layers": 1}, "embedding": {"dim": 24}}


def inputs_of(length):
    ids = np.random.default_rng(0).integers(0, 30, (1, length))
    return {"encoder_token_ids": ids, "decoder_token_ids": ids}


# Its sizes are those of a checkpoint, see tests/convert/t2t/test_encoder_decoder.py.
def test_the_preset_of_translation_has_the_published_numbers():
    preset = presets.TRANSLATION_PRESETS[TRANSLATOR]
    assert preset["sequence_length"] == 4096 and preset["source"]
    for side in ("encoder", "decoder"):
        parts = parts_of(preset[side])
        assert (parts["LocalAttention"]["block_size"], parts["RoutingAttention"]["cluster_size"]) == (256, 512)
        assert (preset[side]["norm"], preset[side]["activation"]) == ("post", "geglu")
        assert preset[side]["dropout"]["residual"] == 0.3


def test_the_model_of_a_preset_of_translation_is_causal():
    model = SequenceToSequence.from_preset(TRANSLATOR, 30, **SMALL)
    assert model.backbone.causal_selection and model.source_vocabulary_size == 30 and model.encoder.embedding is None
    across = [block.cross_attention.parts for block in model.backbone.blocks]
    assert [part.num_heads for parts in across for part in parts] == [16, 2, 14]
    assert across[1][0].selection == "top_keys" and not across[1][0].share_qk
    assert model.backbone.cache_unsupported_reason is None
    assert tuple(model(inputs_of(9)).shape) == (1, 9, 30)


@pytest.mark.full
def test_the_published_form_of_translation_looks_ahead():
    model = SequenceToSequence.from_preset(TRANSLATOR, 30, source_vocabulary_size=20, reproduce_reference=True, **SMALL)
    assert not model.backbone.causal_selection and model.source_vocabulary_size == 20
    with pytest.warns(UserWarning, match="is not causal"):
        model({**inputs_of(9), "encoder_token_ids": np.ones((1, 9), "int32")})


@pytest.mark.full
def test_cross_attention_of_ones_own_replaces_that_of_a_preset():
    dense = [{"layer": "DenseAttention", "num_heads": 2, "key_dim": 8}]
    model = SequenceToSequence.from_preset(TRANSLATOR, 30, cross_attention=dense, **SMALL)
    assert [len(block.cross_attention.parts) for block in model.backbone.blocks] == [1, 1]
    with pytest.raises(ValueError, match="`name`"):
        SequenceToSequence.from_preset("pg19_local8k", 30)


# By name the query heads, key-value heads and size of a head; the window, how many layers go by before one sees
# everything, and the wavelengths of layers with a window and without.
NUMBERS = {
    "gemma3_1b": ((4, 1, 256), 512, 5, (1e4, 1e6)),
    "gemma3_tiny": ((4, 2, 16), 64, 5, (1e4, 1e6)),
    "gpt_oss_20b_dense": ((64, 8, 64), 128, 1, (1.5e5, 1.5e5)),
    "gpt_oss_tiny": ((8, 2, 16), 32, 1, (1.5e5, 1.5e5)),
}


def shape_of(name):
    """Return a model without values of its weights, which would take gigabytes."""
    with keras.StatelessScope(initialize_variables=False):
        return LanguageModel.from_preset(name, vocabulary_size=7, tie_embeddings=True, use_output_bias=False)


@pytest.mark.parametrize("name", [pytest.param(x, marks=() if "tiny" in x else pytest.mark.full) for x in NUMBERS])
def test_layers_that_see_everything_alternate_with_windows(name):
    heads, window, num_local, wavelengths = NUMBERS[name]
    blocks = shape_of(name).backbone.blocks
    for index, block in enumerate(blocks):
        (layer,) = block.attention.parts
        is_local = index % (num_local + 1) < num_local
        assert getattr(layer, "window", None) == (window if is_local else None)
        assert (layer.num_heads, layer.num_key_value_heads, layer.key_dim) == heads
        assert layer.head_settings.rotary.max_wavelength == wavelengths[0 if is_local else 1]
        assert layer.head_settings.use_sink == name.startswith("gpt") != layer.head_settings.use_query_key_norm
    assert len(blocks) == preset_arguments(name)["num_layers"] and set(DECODER_PRESETS) == set(NUMBERS)


@pytest.mark.full
def test_the_parameters_of_gemma_are_as_many_as_published():
    embedding = (262_144 - 7) * 1152  # of the ids that the small vocabulary lacks
    assert shape_of("gemma3_1b").count_params() + embedding == 999_885_952
