"""Trains one small model with Adafactor.

The mode is `mirrored` (TensorFlow, two replicas) or `stateless` (JAX, `stateless_apply` under jit).
"""

import keras
import numpy as np

from tf_sparse_attention.optimizers import Adafactor, RsqrtNormalizedDecay

STEPS, BATCH = 6, 8


def make_model(arguments=None, **compile_arguments):
    """Token ids (BATCH, 5) to 4 classes: sparse gradients, kernels of rank 3, biases of rank 1 and 2."""
    ids = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(11, 6, name="embedding")(ids)
    x = keras.layers.EinsumDense("btd,dnh->btnh", (5, 2, 4), bias_axes="nh", activation="tanh", name="query")(x)
    x = keras.layers.EinsumDense("btnh,nhd->btd", (5, 6), bias_axes="d", name="attention_output")(x)
    outputs = keras.layers.Dense(4, name="logits")(keras.layers.Flatten()(x))
    model = keras.Model(ids, outputs)
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape, scale=0.5) for w in model.get_weights()])
    optimizer = Adafactor(RsqrtNormalizedDecay(0.05, warmup_steps=3), **(arguments or {"beta_1": 0.5}))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **compile_arguments)
    return model


def make_data():
    random = np.random.default_rng(1)
    # Ids below 9 of 11: two rows of the embedding never get a gradient.
    return random.integers(0, 9, (STEPS * BATCH, 5)).astype("int32"), random.integers(0, 4, STEPS * BATCH)


def fit(model, first=0, last=STEPS):
    ids, labels = make_data()
    part = slice(first * BATCH, last * BATCH)
    model.fit(ids[part], labels[part], batch_size=BATCH, shuffle=False, verbose=0)
    return model


def fit_statelessly(model):
    import jax

    optimizer, loss = model.optimizer, model.loss
    trainable = [v.value for v in model.trainable_variables]
    optimizer.build(model.trainable_variables)
    state = [v.value for v in optimizer.variables]

    def loss_of(trainable, ids, labels):
        logits, _ = model.stateless_call(trainable, [], ids, training=True)
        return loss(labels, logits)

    @jax.jit
    def step(trainable, state, ids, labels):
        return optimizer.stateless_apply(state, jax.grad(loss_of)(trainable, ids, labels), trainable)

    ids, labels = make_data()
    for start in range(0, len(ids), BATCH):
        trainable, state = step(trainable, state, ids[start : start + BATCH], labels[start : start + BATCH])
    return trainable, state


def train(mode, strategy=None):
    """Train in one mode; return the arrays to compare, named as the test reads them."""
    if mode == "stateless":
        weights, state = fit_statelessly(make_model())
    else:
        with strategy.scope():
            model = fit(make_model(jit_compile=False))  # XLA cannot hold the reduction over replicas
        weights, state = model.get_weights(), [v.numpy() for v in model.optimizer.variables]
    return {f"weight{i}": w for i, w in enumerate(weights)} | {f"state{i}": s for i, s in enumerate(state)}
