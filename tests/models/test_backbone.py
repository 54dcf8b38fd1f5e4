"""The backbone: its blocks, inputs, configuration and state."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.layers import LocalAttention, MixedAttention
from tf_sparse_attention.models import AttentionOptions, Backbone, DropoutOptions, EmbeddingOptions

LOCAL = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 8}
ROUTING = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 3, "cluster_size": 5}


def small(**changes):
    arguments = {"vocabulary_size": 20, "num_layers": 2, "hidden_dim": 16, "attention": [ROUTING, LOCAL], "seed": 1}
    return Backbone(**{**arguments, "intermediate_dim": 32, **changes})


def ids(*shape):
    return np.random.default_rng(0).integers(1, 20, shape).astype("int32")


def test_skipped_blocks_give_all_heads_to_the_local_part():
    blocks = small(attention=AttentionOptions([ROUTING, LOCAL], num_local_layers=1)).blocks
    found = [[(type(part).__name__, part.num_heads) for part in block.attention.parts] for block in blocks]
    assert found == [[("LocalAttention", 3)], [("RoutingAttention", 1), ("LocalAttention", 2)]]


def test_a_saved_backbone_is_the_same_when_loaded(tmp_path):
    options = {"dropout": 0.1, "embedding": {"dim": 6}, "norm": "post", "activation": "geglu"}
    for attention in (
        [[LOCAL], [ROUTING, {**LOCAL, "window": 3}]],
        AttentionOptions([ROUTING, LOCAL], num_local_layers=1),
    ):
        backbone = small(attention=attention, **options)
        backbone.save(tmp_path / "backbone.keras")
        again = keras.models.load_model(tmp_path / "backbone.keras")
        np.testing.assert_array_equal(again(ids(2, 12)), backbone(ids(2, 12)))
        assert again.get_config() == backbone.get_config()


@keras.saving.register_keras_serializable(package="tests")
class Near(LocalAttention):
    """A layer of one's own: its window is given by the tokens before the query, and its config says no more."""

    def __init__(self, num_before, **kwargs):
        super().__init__(num_heads=2, key_dim=8, window=num_before + 1, **kwargs)

    def get_config(self):
        config = super().get_config()
        own = {name: config[name] for name in ("name", "trainable", "dtype", "dropout", "seed")}
        return {**own, "num_before": self.window - 1}


def near():
    return Near(5, name="near")


def test_a_part_may_be_a_layer_of_ones_own(tmp_path):
    for part in (keras.saving.serialize_keras_object(near()), near()):
        backbone = small(attention=[part, LOCAL])
        made = [block.attention.parts[0] for block in backbone.blocks]
        assert [(type(layer), layer.window, layer.name) for layer in made] == [(Near, 6, "near")] * 2
        assert made[0] is not made[1]
    backbone.save(tmp_path / "backbone.keras")
    again = keras.models.load_model(tmp_path / "backbone.keras")
    np.testing.assert_array_equal(again(ids(2, 12)), backbone(ids(2, 12)))
    assert json.loads(json.dumps(backbone.get_config()["attention"])) == again.get_config()["attention"]


def test_options_may_be_given_in_four_forms():
    attention = {"parts": [ROUTING, LOCAL], "num_local_layers": 1}
    both = [
        small(attention=AttentionOptions(**attention), embedding=EmbeddingOptions(6), norm="post", dropout=0.1),
        small(attention=attention, embedding={"dim": 6}, norm={"placement": "post"}, dropout=DropoutOptions(0.1)),
    ]
    assert both[0].get_config() == {**both[1].get_config(), "name": both[0].name}
    assert small(embedding=None).get_config()["embedding"]["dim"] is None


def test_dictionary_inputs_equal_keyword_inputs():
    backbone, tokens = small(num_layers=1), ids(2, 12)
    mask = np.arange(12)[None] < np.array([[12], [7]])
    segments = np.where(np.arange(12) < 5, 1, 2)[None].repeat(2, 0)
    by_name = backbone(tokens, padding_mask=mask, segment_ids=segments)
    in_one = backbone({"token_ids": tokens, "padding_mask": mask, "segment_ids": segments})
    np.testing.assert_array_equal(by_name, in_one)


WIDE = {"layer": "GlobalLocalAttention", "num_heads": 2, "key_dim": 8, "window": 2}


@pytest.mark.parametrize("remat", [False, True])
def test_global_tokens_are_marked_among_the_inputs(remat):
    backbone = small(attention=[LOCAL, WIDE], num_layers=1, causal=False, remat=remat)
    tokens = ids(2, 30)
    marks = np.arange(30) == np.array([[4], [29]])
    x = backbone.embed(tokens)
    for block in backbone.blocks:
        x = block(x, global_mask=marks)
    found = ops.convert_to_numpy(backbone({"token_ids": tokens, "global_mask": marks}, training=remat))
    np.testing.assert_allclose(found, ops.convert_to_numpy(backbone.final_norm(x)), atol=1e-5)
    assert np.abs(found - ops.convert_to_numpy(backbone(tokens))).max() > 0.01


def test_skipped_blocks_do_without_the_marks_that_the_others_take():
    backbone = small(attention={"parts": [LOCAL, WIDE], "num_local_layers": 1}, causal=False)
    assert backbone({"token_ids": ids(2, 9), "global_mask": np.ones((2, 9), bool)}).shape == (2, 9, 16)
    assert (backbone.blocks[0].attention.extra_mask_names, backbone.extra_mask_names) == ((), ("global_mask",))


def test_token_dropout_replaces_its_share_of_ids_in_training_alone():
    backbone = small(dropout={"tokens": 0.2}, num_layers=1, attention=[{**LOCAL, "window": 1}])  # no token sees another
    tokens = ids(1, 1000)
    calm, noisy = backbone(tokens), backbone(tokens, training=True)
    changed = np.mean(np.any(ops.convert_to_numpy(calm != noisy), axis=-1))
    assert 0.16 < changed < 0.24
    np.testing.assert_array_equal(calm, backbone(tokens))


def test_the_embedding_is_dropped_at_its_own_rate():
    backbone = small(dropout={"embedding": 0.25}, num_layers=1)
    seen = []
    whole = backbone.blocks[0].call
    backbone.blocks[0].call = lambda x, **arguments: seen.append(ops.convert_to_numpy(x)) or whole(x, **arguments)
    backbone(ids(4, 200), training=True)
    assert 0.22 < np.mean(seen[0] == 0) < 0.28


def test_no_two_random_draws_of_a_backbone_share_a_seed():
    parts = [{**LOCAL, "dropout": 0.1}, {**ROUTING, "dropout": 0.1}]
    backbone = small(attention=parts, dropout=DropoutOptions(0.1, embedding=0.1, activation=0.1))
    seeds = [tuple(ops.convert_to_numpy(v)) for v in backbone.non_trainable_variables if "seed" in v.path]
    assert len(seeds) == 1 + 2 * 4 and len(set(seeds)) == len(seeds)


def test_mixed_precision_reaches_every_layer():
    backbone = small(dtype="mixed_bfloat16", embedding={"dim": 6})
    policies = {layer.dtype_policy.name for layer in backbone._flatten_layers() if layer.dtype_policy is not None}
    assert policies == {"mixed_bfloat16"}
    assert keras.backend.standardize_dtype(backbone(ids(1, 9)).dtype) == "bfloat16"
    assert backbone.blocks[0].attention.parts[0].centroids.dtype == "float32"


def test_wrong_arguments_are_named(subtests):
    mixed, hashed = MixedAttention([LocalAttention(2, 4), LocalAttention(1, 4)]), {"layer": "LSHAttention"}
    unknown = {"class_name": "Unknown", "config": {}, "module": None, "registered_name": "my>Unknown"}
    cases = [
        ({"vocabulary_size": 0}, "`vocabulary_size`"),
        ({"num_layers": 0}, "`num_layers`"),
        ({"attention": {"parts": [LOCAL], "num_local_layers": -1}}, "`attention.num_local_layers`"),
        ({"dropout": {"tokens": 1.0}}, "`dropout.tokens`"),
        ({"dropout": 1.0}, "`dropout`"),
        ({"dropout": {"rate": 0.1}}, "`dropout`"),
        ({"attention": {"num_local_layers": 1}}, "`attention`"),
        ({"embedding": {"div_value": 2}}, "`embedding.cutoffs`"),
        ({"embedding": "adaptive"}, "`embedding` must"),
        ({"attention": LOCAL}, "2 blocks. Put the dictionary in a list. Received: attention={'layer': 'Local"),
        ({"attention": []}, "`attention`"),
        ({"attention": [{"layer": "Nowhere"}]}, r"one of \[.*'LocalAttention', .* as 'layer'. Received: {'layer': 'No"),
        ({"attention": [mixed]}, r"must list the parts of a .* with the parts \['LocalAttention', 'LocalAttention'\]"),
        ({"attention": [keras.layers.MultiHeadAttention(2, 4)]}, "as 'layer'. Received: <MultiHeadAttention "),
        ({"attention": [{**ROUTING, "use_successor_values": True}], "causal": False}, "`causal`"),
        ({"attention": [{**LOCAL, "dtype": "float32"}]}, "`attention`"),
        ({"attention": {"parts": [ROUTING, LOCAL], "num_local_layers": 2}}, "`num_local_layers`"),
        ({"attention": {"parts": [ROUTING], "num_local_layers": 1}}, "`num_local_layers`"),
        ({"attention": {"parts": [LOCAL, {**hashed, "key_dim": 16}], "num_local_layers": 1}}, "`attention`"),
        ({"attention": [ROUTING, LOCAL], "norm": "none"}, "`norm`"),
        ({"attention": [[LOCAL]]}, r"one for each of the 2 blocks. Received: attention=\[\[{'layer': 'Local"),
        ({"attention": [[LOCAL], LOCAL]}, "one for each of the 2 blocks"),
        ({"attention": {"parts": [[LOCAL], [LOCAL]], "num_local_layers": 1}}, "`num_local_layers`"),
        ({"attention": [keras.layers.Dense(3)]}, "`tsa.layers.AttentionLayer`"),
        ({"attention": [unknown]}, "`attention`"),
    ]
    for changes, message in cases:
        with subtests.test(str(changes)), pytest.raises(ValueError, match=message):
            small(**changes)


def test_wrong_inputs_are_named(subtests):
    keys, backbone = "may have 'padding_mask' and 'segment_ids'. Received: keys", small()
    for inputs, message in [
        (ids(5), r"`inputs` must be token ids of shape \(batch, positions\). Received: shape \(5,\)"),
        ((ids(2, 5), ids(2, 5)), r"`inputs` must be token ids of shape \(batch, positions\). Received: tuple"),
        ({"ids": ids(1, 3)}, rf"{keys} \['ids'\]"),
        ({"token_ids": ids(2, 9), "global_mask": np.ones((2, 9))}, rf"{keys} \['global_mask', 'token_ids'\]"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            backbone(inputs)
