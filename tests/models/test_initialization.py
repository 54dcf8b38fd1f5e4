"""The initial weights by depth are those of the paper."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.models import Backbone, LanguageModel, initialize_by_depth

ATTENTION = {"layer": "StridedAttention", "num_heads": 4, "key_dim": 16, "value_dim": 32, "stride": 4}


def make(**changes):
    arguments = {"intermediate_dim": 512, "embedding": {"grid": (8, 4, 2)}, **changes}
    return LanguageModel(Backbone(300, 2, 128, [ATTENTION], **arguments))


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
    begins = []
    for seed in (0, 1, 1000):
        backbone = Backbone(300, 2, 16, [routed, routed, persistent], embedding=embedding, seed=seed)
        for weight in LanguageModel(backbone).weights:
            if weight.path.endswith(
                ("centroids", "persistent/key", "persistent/value", "axis_0", "axis_1", "embeddings_0")
            ):
                values = keras.ops.convert_to_numpy(weight).ravel()[:4]
                begins.append(tuple(np.round(values / values[0], 4)))
    assert len(begins) == len(set(begins)) > 20
