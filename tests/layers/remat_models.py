"""A model with all kinds of state, with and without rematerialization, for the tests on both backends."""

import keras
import numpy as np

from tests.contracts import SIZE, normal, to_numpy, with_random_weights
from tf_sparse_attention.layers import FeedForward, LocalAttention, MixedAttention, RoutingAttention, TransformerBlock


def stateful_block(remat, dropout=0.2, revive_after=2):
    """Centroids that move, revive and add a loss, regularised kernels, and dropout in four places."""
    common = {"dropout": dropout, "kernel_regularizer": keras.regularizers.L2(0.01), "seed": 3}
    routing = RoutingAttention(1, 4, 3, 4, commitment_loss=0.1, ema_decay=0.9, revive_after=revive_after, **common)
    attention = MixedAttention([LocalAttention(1, 4, window=3, activity_regularizer="l2", **common), routing])
    feed_forward = FeedForward(12, dropout=dropout, seed=4)
    return TransformerBlock(attention, feed_forward, causal=True, dropout=dropout, remat=remat, seed=5, name="block")


def stateful_model(remat, **own):
    inputs = keras.Input((13, SIZE))
    model = with_random_weights(keras.Model(inputs, stateful_block(remat, **own)(keras.layers.Masking()(inputs))))
    for weight in model.weights:
        if weight.name in ("centroids", "sums"):  # backends draw different ones
            weight.assign(normal(*weight.shape, seed=4))
    return model


def train(remat, jit_compile="auto", **own):
    """Return, after two steps of `fit`, losses, all weights and state, and the states of the seed generators."""
    model = stateful_model(remat, **own)
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=jit_compile)
    x, y = normal(8, 13, SIZE), normal(8, 13, SIZE, seed=1)
    x[::2, 9:] = 0  # padding
    history = model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0)
    seeds = [to_numpy(variable.value) for variable in model.non_trainable_variables if "seed" in variable.path]
    return [np.array(history.history["loss"]), *model.get_weights(), *seeds]
