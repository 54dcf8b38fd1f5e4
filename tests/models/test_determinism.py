"""Two trainings with the same seed end with the same bits, on both backends."""

import hashlib

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.models import Backbone, LanguageModel, language_model_loss

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


def test_equal_seeds_give_equal_bits():
    assert train() == train()


def test_equal_seeds_give_equal_bits_on_jax(run_jax):
    run_jax("from tests.models.test_determinism import train\nassert train() == train()")
