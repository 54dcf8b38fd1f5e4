"""A checkpoint with an encoder becomes an encoder-decoder, of which every variable is used."""

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.convert.t2t.cases import (
    SCOPE,
    Small,
    assert_same_backbone,
    layout_with_encoder,
    plan_of,
    small_encoder_decoder,
)
from tf_sparse_attention.models.presets import translation_arguments
from tf_sparse_attention.models.rebuilding import weights_by_path

pytestmark = pytest.mark.filterwarnings("ignore:.*is not causal")

ENCODER, DECODER = (f"{SCOPE}{name}_layer_{{}}/self_attention/" for name in ("encoder", "decoder"))
INPUTS = {
    "encoder_features": np.random.default_rng(1).normal(size=(2, 17, 12)).astype("float32"),
    "encoder_padding_mask": np.arange(17) < np.array([[17], [9]]),
    "decoder_token_ids": np.random.default_rng(2).integers(0, 20, (2, 30)),
}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return small_encoder_decoder().write(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def model(prefix):
    return tsa.convert.from_t2t_checkpoint(prefix)


@pytest.fixture(scope="module")
def causal(model):
    return tsa.convert.with_causal_routing(model)


@pytest.mark.full
def test_every_weight_has_a_row_of_its_shape_and_every_variable_is_used(small_with_encoder):
    plan = plan_of(small_with_encoder)
    weights = weights_by_path(plan.make_model())
    unused = {path for path in weights if path.endswith("clusters/unused") or "seed_generator" in path}
    assert {row.target: row.shape for row in plan.rows} == {
        path: tuple(weight.shape) for path, weight in weights.items() if path not in unused
    }
    read = {SCOPE + name for row in plan.rows for name in row.sources}
    assert read == {name for name in small_with_encoder.tensors if name.startswith(SCOPE)} and plan.unused == []


def test_distances_of_an_encoder_are_read_where_the_published_code_reads_them(small_with_encoder):
    # The table has the distances -5 to 5; 15 is the largest that blocks of 8 with one on each side show, which the
    # published code reads at 15 - 8; so -3 is at -11, which is clipped.
    row = next(row for row in plan_of(small_with_encoder).rows if row.target.endswith("local_0/relative_key"))
    read = row.compute(np.arange(-5, 6))
    assert len(read) == row.shape[0] == 31
    distances = np.array([-15, -3, 3, 4, 8, 12, 13, 15])
    assert read[distances + 15].tolist() == [-5, -5, -5, -4, 0, 4, 5, 5]


@pytest.mark.full
def test_causal_routing_keeps_the_weights_and_ignores_padding_of_the_source(causal, model):
    ours, theirs = weights_by_path(causal), weights_by_path(model)
    assert set(ours) == set(theirs)
    for path, weight in theirs.items():
        np.testing.assert_array_equal(ours[path], weight, err_msg=path)
    routing = causal.backbone.blocks[1].cross_attention.parts[0]
    assert (routing.selection, routing.reproduce_reference) == ("top_keys", False)
    selections = [part.selection for block in causal.encoder.blocks[1:] for part in block.attention.parts[:1]]
    assert selections == ["top_k"] * 2  # the selection of the encoder stays as it was
    whole = np.asarray(causal(INPUTS))
    alone = {**INPUTS, "encoder_features": INPUTS["encoder_features"][:, :9]}
    alone = {name: x[1:] for name, x in alone.items() if name != "encoder_padding_mask"}
    np.testing.assert_allclose(causal(alone), whole[1:], atol=1e-4)
    encoded, token_ids = causal.encode(INPUTS), INPUTS["decoder_token_ids"]
    cache = causal.decoder.init_cache(2, 30, **encoded)
    for index in range(5):
        logits, cache = causal.decoder.extend(token_ids[:, index : index + 1], cache, index=index)
        np.testing.assert_allclose(logits[:, 0], whole[:, index], atol=1e-4)


def test_checkpoints_and_settings_that_do_not_fit_are_errors(small_with_encoder, subtests):
    tensors, settings = small_with_encoder.tensors, small_with_encoder.settings
    for message, change in [
        ("memory_query_shape", {"memory_query_shape": None}),
        ("memory_query_shape", {"memory_query_shape": [3]}),
        ("num_encoder_layers=2", {"num_encoder_layers": 2}),
        ("input_dropout", {"input_dropout": 0.1}),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            plan_of(Small(tensors, settings | change))
    missing = f"{DECODER.format(1)}enc_dec_attention/v/kernel"
    before = {name.replace("postprocess", "prepostprocess"): x for name, x in tensors.items()}
    before[f"{SCOPE}layer_prepostprocess/layer_norm/layer_norm_scale"] = np.ones(12)

    def is_routed_in_encoder_layer_1(name):
        return "encoder_layer_1/" in name and "cluster_attention" in name

    for message, changed in [
        (f"missing: {missing.removeprefix(SCOPE)}", {name: x for name, x in tensors.items() if name != missing}),
        ("must be a post-norm model if it has an encoder", before),
        (
            r"routed heads in layers \(2,\) of 3 encoder layers",
            {name: x for name, x in tensors.items() if not is_routed_in_encoder_layer_1(name)},
        ),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            plan_of(Small(changed, settings))


def test_the_preset_for_documents_is_what_a_checkpoint_of_its_sizes_becomes():
    sizes = {"embedding_dim": 1024, "hidden_dim": 1024, "intermediate_dim": 4096, "num_heads": 16, "num_routing": 2}
    sizes |= {"num_layers": 6, "encoder_layers": 6, "routed": (4, 5), "encoder_routed": (4, 5), "num_clusters": 8}
    sizes |= {"key_dim": 64, "value_dim": 64, "local_distance": 513, "routing_distance": 513}
    shapes = {SCOPE + name: shape for name, shape in layout_with_encoder(**sizes).shapes.items()}
    plan = tsa.convert.plan_t2t_checkpoint(shapes, "translate_local_cluster4k")
    published = translation_arguments("translate_local_cluster4k", reproduce_reference=True)
    for ours, theirs in zip((plan.encoder_arguments(), plan.backbone_arguments()), published, strict=True):
        assert_same_backbone(ours, theirs)
        assert ours["attention"]["reproduce_reference"] == theirs["attention"]["reproduce_reference"]
    assert plan.settings["optimizer"] == "adam"
