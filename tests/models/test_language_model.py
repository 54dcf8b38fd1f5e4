"""The language model: logits, presets, training, saving."""

import keras
import numpy as np
import pytest

from tests.draws import first_of_each
from tf_sparse_attention.models import PRESETS, Backbone, LanguageModel
from tf_sparse_attention.models.presets import preset_arguments

PARTS = [
    {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 3, "cluster_size": 5},
    {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 8},
]


def small(tie_embeddings=False, use_output_bias=True, **changes):
    arguments = {"vocabulary_size": 20, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32, "attention": PARTS}
    return LanguageModel(Backbone(**{**arguments, **changes}), tie_embeddings, use_output_bias)


def ids(*shape):
    return np.random.default_rng(0).integers(1, 20, shape).astype("int32")


def num_trainable(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


def test_a_tied_model_adds_its_output_bias():
    model, tokens = small(tie_embeddings=True), np.array([[3, 1, 4]])
    before = np.asarray(model(tokens))
    assert before.shape == model.compute_output_shape((1, 3)) == (1, 3, 20)
    model.output_bias.assign(np.arange(20.0))
    np.testing.assert_allclose(model(tokens), before + np.arange(20.0), atol=1e-5)


def test_a_tied_model_has_no_kernel_and_on_request_no_bias_of_its_output():
    untied, tied, plain = (num_trainable(small(*tied)) for tied in ((False,), (True,), (True, False)))
    assert (untied - tied, tied - plain) == (16 * 20, 20)


def test_logits_are_float32_under_mixed_precision():
    backbone = Backbone(20, 1, 16, PARTS, dtype="mixed_bfloat16")
    logits = LanguageModel(backbone, dtype="mixed_bfloat16")(ids(1, 5))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"


@pytest.mark.parametrize(
    ("name", "published"),
    [("pg19_local8k", 414_515_184), ("pg19_local_cluster8k", 380_330_184), ("pg19_routing_published", 287_716_510)],
)
def test_presets_have_the_published_number_of_parameters(name, published):
    """All but three things we do without or do not train, in each layer, with heads of size 129:

    the matrix shared by the heads, which folds into the output projection; keys of heads whose queries are the keys;
    centroids, which move by averages.
    """
    with keras.StatelessScope(initialize_variables=False):  # weights of a shape and no values, which take a gigabyte
        model = LanguageModel.from_preset(name, vocabulary_size=5)
    routing = [part for block in model.backbone.blocks for part in block.attention.parts if part.share_qk]
    shared_matrices = len(model.backbone.blocks) * 129 * 129
    unused_keys = sum(part.num_heads * 129 * 1032 for part in routing)
    centroids = sum(part.num_heads * 16 * 129 for part in routing)
    assert num_trainable(model) == published + 2065 * 5 - shared_matrices - unused_keys - centroids


# By default one of each data set.
@pytest.mark.parametrize("name", first_of_each(sorted(PRESETS), lambda name: name.split("_")[0]))
def test_every_preset_builds_and_is_causal_by_selection(name):
    sizes = {"num_layers": 2, "hidden_dim": 24, "intermediate_dim": 16}
    if any(part["layer"] == "LocalAttention" for part in preset_arguments(name)["attention"]["parts"]):
        sizes["attention"] = {"num_local_layers": 1}
    model = LanguageModel.from_preset(name, vocabulary_size=30, **sizes)
    assert all(block.attention.pattern.causal_selection for block in model.backbone.blocks)
    assert tuple(model(ids(1, 9)).shape) == (1, 9, 30)
    assert PRESETS[name]["source"]


def test_wrong_arguments_are_named(subtests):
    for name, make in [
        ("name", lambda: LanguageModel.from_preset("gpt", vocabulary_size=5)),
        ("backbone", lambda: LanguageModel(keras.layers.Dense(3))),
        ("tie_embeddings", lambda: LanguageModel(Backbone(40, 1, 16, [NEAR]), tie_embeddings="no")),
        ("use_output_bias", lambda: LanguageModel(Backbone(40, 1, 16, [NEAR]), use_output_bias="no")),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            make()


NEAR = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 8}


@pytest.mark.parametrize("tied", [True, False])
def test_an_adaptive_vocabulary_gives_log_probabilities_and_their_loss(tied, tmp_path):
    options = {"embedding": {"cutoffs": (8, 20), "div_value": 2}, "intermediate_dim": 32, "seed": 1}
    model = LanguageModel(Backbone(40, 1, 16, [NEAR], **options), tie_embeddings=tied)
    tokens, targets = np.random.default_rng(0).integers(1, 40, (2, 2, 9)).astype("int32")
    every = np.asarray(model(tokens))
    np.testing.assert_allclose(np.exp(every).sum(-1), 1, rtol=1e-5)
    expected = -np.take_along_axis(every, targets[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(model.nats(model.backbone(tokens), targets), expected, rtol=1e-4)
    tables = [weight for weight in model.weights if "embeddings_" in weight.name]
    assert len(tables) == (3 if tied else 6)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(tokens), every)


def test_the_nats_of_one_table_are_those_of_its_logits():
    model = LanguageModel(Backbone(40, 1, 16, [NEAR]))
    tokens, targets = np.random.default_rng(0).integers(1, 40, (2, 2, 9)).astype("int32")
    expected = keras.losses.sparse_categorical_crossentropy(targets, model(tokens), from_logits=True)
    np.testing.assert_allclose(model.nats(model.backbone(tokens), targets), expected, rtol=1e-6)
