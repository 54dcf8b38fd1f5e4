"""The initial weights by depth are those of the paper, and equal seeds give equal models and trainings."""

import hashlib

import keras
import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.models import Backbone, LanguageModel, initialize_by_depth, language_model_loss

ATTENTION = {"layer": "StridedAttention", "num_heads": 4, "key_dim": 16, "value_dim": 32, "stride": 4}


def make():
    return LanguageModel(Backbone(300, 2, 128, [ATTENTION], intermediate_dim=512, embedding={"grid": (8, 4, 2)}))


@pytest.fixture(scope="module")
def weights():
    model = make()
    initialize_by_depth(model, seed=0)
    return {weight.path: weight.numpy() for weight in model.weights}


def test_kernels_and_tables_have_the_spread_of_the_paper(weights):
    for end, stddev in {
        "embedding/embeddings": 0.125 / 128**0.5,
        "grid_embedding/axis_0": 0.125 / (3 * 128) ** 0.5,
        "query/kernel": 0.125 / 128**0.5,
        "value/kernel": 0.125 / 128**0.5,
        "attention_output/kernel": 0.125 / 128**0.5 / 2,  # 4 heads of 32 values; two blocks have four additions
        "inner/kernel": 0.125 / 128**0.5,
        "output/kernel": 0.125 / 512**0.5 / 2,
    }.items():
        found = [weight for path, weight in weights.items() if path.endswith(f"/{end}")]
        assert found
        for weight in found:
            assert np.std(weight) == pytest.approx(stddev, rel=0.1) and abs(np.mean(weight)) < 0.2 * stddev


def test_a_new_model_finds_every_token_equally_likely(weights):
    model = make()
    initialize_by_depth(model, seed=0)
    np.testing.assert_array_equal(model(np.arange(20)[None]), np.zeros((1, 20, 300)))
    tied = LanguageModel(make().backbone, tie_embeddings=True)
    initialize_by_depth(tied, seed=0)
    assert np.any(tied(np.arange(20)[None]))
    assert all(not np.any(weight) for path, weight in weights.items() if path.endswith("/bias"))


def test_two_runs_with_one_seed_agree_and_another_model_is_refused():
    first, second = make(), make()
    for model in (first, second):
        initialize_by_depth(model, seed=7)
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="`model`"):
        initialize_by_depth(first.backbone)


def test_models_of_other_seeds_share_no_seeded_weights():
    heads = {"num_heads": 1, "key_dim": 16}
    routed = {"layer": "RoutingAttention", "num_clusters": 4, "cluster_size": 8, **heads}
    persistent = {"layer": "AllAttention", "num_persistent": 4, "window": 8, **heads}
    embedding = {"cutoffs": (100,), "grid": (8, 8)}
    begins, ends = [], ("centroids", "persistent/key", "persistent/value", "axis_0", "axis_1", "embeddings_0")
    for seed in (0, 1, 1000):
        backbone = Backbone(300, 2, 16, [routed, routed, persistent], embedding=embedding, seed=seed)
        for weight in LanguageModel(backbone).weights:
            if weight.path.endswith(ends):
                values = keras.ops.convert_to_numpy(weight).ravel()[:4]
                begins.append(tuple(np.round(values / values[0], 4)))
    assert len(begins) == len(set(begins)) > 20


ROUTING = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 4, "num_clusters": 2, "cluster_size": 6}


def train():
    """Return a hash of all variables after four steps of training with dropout and moving centroids."""
    keras.utils.set_random_seed(1)
    backbone = Backbone(20, 1, 8, [{**ROUTING, "dropout": 0.1}], dropout=0.1)
    model = LanguageModel(backbone)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), language_model_loss())
    ids = np.random.default_rng(0).integers(1, 20, (16, 12)).astype("int32")
    model.fit(ids, ids, batch_size=4, verbose=0)
    variables = model.variables + model.optimizer.variables
    return hashlib.sha256(b"".join(ops.convert_to_numpy(variable).tobytes() for variable in variables)).hexdigest()


@pytest.mark.full
def test_equal_seeds_give_equal_bits():
    assert train() == train()


@pytest.mark.full
def test_equal_seeds_give_equal_bits_on_jax(run_jax):
    run_jax("from tests.models.test_initialization import train\nassert train() == train()")
