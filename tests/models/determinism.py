"""A short training with dropout and moving centroids, on the backend at hand."""

import hashlib

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.models import Backbone, LanguageModel, language_model_loss

ROUTING = {"layer": "RoutingAttention", "num_heads": 2, "key_dim": 4, "num_clusters": 2, "cluster_size": 6}


def train():
    """Return a hash of all variables after six steps of training."""
    keras.utils.set_random_seed(1)
    backbone = Backbone(20, 1, 8, [{**ROUTING, "dropout": 0.1}], intermediate_dim=16, dropout=0.1)
    model = LanguageModel(backbone)
    model.compile(keras.optimizers.Adam(0.01), language_model_loss())
    ids = np.random.default_rng(0).integers(1, 20, (24, 12)).astype("int32")
    model.fit(ids, ids, batch_size=4, verbose=0)
    variables = model.variables + model.optimizer.variables
    return hashlib.sha256(b"".join(ops.convert_to_numpy(variable).tobytes() for variable in variables)).hexdigest()
