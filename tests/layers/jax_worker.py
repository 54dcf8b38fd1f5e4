"""Checks of the layers that run on JAX, in a process of their own; `test_jax_layers.py` judges the figures."""

import jax
import keras
import numpy as np

from tests import contracts
from tests.cases import CASES
from tests.contracts import SIZE, built, normal
from tests.layers.decoded import largest_error
from tests.layers.remat_models import train
from tf_sparse_attention import layers


def float64(name):
    """Decode with a soft cap in float64.

    Returns the largest error against the full pass, and whether gradients are finite where a query sees nothing.
    """
    with jax.enable_x64(True):
        layer = CASES[name].make(logit_soft_cap=2.0, dtype="float64")
        layer.build((None, None, SIZE))
        x = normal(3, 7, SIZE).astype("float64")
        error = largest_error(layer, x, np.array([0, 1, 3]))
        hidden = np.arange(7)[:, None] != 3  # no key for the query at 3
        total = jax.grad(lambda x: layer(x, attention_mask=hidden, use_causal_mask=True).sum())
        slopes = jax.jit(total)(x)
    return float(error), bool(np.isfinite(slopes).all()) and slopes.dtype == "float64"


def same_contracts(name):
    """Run contracts that need no other backend as they are."""
    case = CASES[name]
    heads = built(case).num_heads
    contracts.check_equals_dense(case, **contracts.random_masks(2, heads, 13, pairs=case.pairs, segments=case.segments))
    contracts.check_state_is_left_alone(case)
    return "passed"


def training(path):
    """Train with rematerialization: the largest difference from what the TensorFlow process got without it."""
    saved = np.load(path)
    results = train(remat=True, dropout=0.0, revive_after=0)  # backends draw different numbers
    return max(float(np.abs(result - saved[f"training/{i}"]).max()) for i, result in enumerate(results))


def memory():
    """Return the bytes that three blocks keep for the backward pass, without and with rematerialization."""
    return [kept_bytes(remat) for remat in (False, True)]


def kept_bytes(remat):
    x = inputs = keras.Input((512, 64), batch_size=1)
    for _ in range(3):
        routing = layers.RoutingAttention(2, 16, num_clusters=8, cluster_size=64)
        attention = layers.MixedAttention([layers.LocalAttention(2, 16, window=64), routing])
        x = layers.TransformerBlock(attention, layers.FeedForward(256), causal=True, remat=remat)(x)
    model = keras.Model(inputs, x)

    def pull_back(trainable, x):
        state = [variable.value for variable in model.non_trainable_variables]
        return jax.vjp(lambda trainable: model.stateless_call(trainable, state, x, training=True)[0], trainable)[1]

    # What the backward pass is given, as shapes alone: nothing is computed.
    values = [variable.value for variable in model.trainable_variables]
    kept = jax.eval_shape(pull_back, values, normal(1, 512, 64))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


def forward_mode(name):
    """Return the error of `jax.jvp` of a layer against central differences, or the class of what it raises."""
    layer, x, step = built(CASES[name]), normal(1, 13, SIZE), normal(1, 13, SIZE, seed=1)

    def call(x):
        return layer(x, use_causal_mask=CASES[name].causal)

    try:
        _, found = jax.jit(lambda x: jax.jvp(call, (x,), (step,)))(x)
    except TypeError:
        return "TypeError"
    return float(np.abs(found - (call(x + 1e-2 * step) - call(x - 1e-2 * step)) / 2e-2).max())


def saved_model(name, folder):
    """Export a layer by Keras as a SavedModel with free batch and length, and return its error in TensorFlow."""
    import tensorflow as tf

    layer, inputs, x = built(CASES[name]), keras.Input((None, SIZE)), normal(2, 13, SIZE)
    model = keras.Model(inputs, layer(inputs, use_causal_mask=CASES[name].causal))
    model.export(folder, verbose=False)
    loaded = tf.saved_model.load(folder)
    return float(np.abs(loaded.serve(x) - model(x)).max())
