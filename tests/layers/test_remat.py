"""Rematerialization changes only the memory."""

import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import SIZE, normal, to_numpy, with_random_weights
from tests.layers.remat_models import assert_same_training, stateful_block, stateful_model, train


@pytest.mark.parametrize(
    ("jit_compile", "num_blocks"),
    [(False, 1), pytest.param(False, 2, marks=pytest.mark.large), pytest.param(True, 2, marks=pytest.mark.large)],
)
def test_losses_weights_state_and_seeds_after_training_are_the_same(jit_compile, num_blocks):
    results = [train(remat, num_blocks, jit_compile=jit_compile) for remat in (False, True)]
    assert_same_training(*results, 1e-6 if not jit_compile else 1e-5)


def block_step(remat, jit_compile):
    """Return loss, gradients, all variables and seeds after two calls of a block and its gradient."""
    block = stateful_block(remat, with_local=not jit_compile)
    block.build((2, 13, SIZE))
    with_random_weights(block)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(block(x, training=True) ** 2) + sum(block.losses)
        return loss, tape.gradient(loss, [x, *(variable.value for variable in block.trainable_variables)])

    for _ in range(2):
        loss, gradients = step(tf.constant(normal(2, 13, SIZE)))
    return to_numpy([loss, *gradients, *(variable.value for variable in block.variables)])


@pytest.mark.parametrize(
    "jit_compile", [pytest.param(False, marks=pytest.mark.full), pytest.param(True, marks=pytest.mark.large)]
)
def test_a_block_has_the_same_gradients_and_moves_its_state_once(jit_compile):
    plain, again = (block_step(remat, jit_compile) for remat in (False, True))
    for a, b in zip(plain, again, strict=True):
        scale = max(1.0, np.abs(a).max())
        np.testing.assert_allclose(b / scale, a / scale, rtol=0, atol=1e-5)


def test_every_loss_is_added_once():
    losses = []
    for remat in (False, True):
        model = stateful_model(remat, num_blocks=1)
        model(normal(2, 13, SIZE), training=True)
        losses.append(sorted(to_numpy(model.losses)))
    assert len(losses[0]) == len(losses[1])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_a_frozen_attention_inside_a_rematerialised_block_stays_as_it_is():
    block = stateful_block(remat=True)
    block.build((2, 13, SIZE))
    block.attention.trainable = False
    before = block.attention.get_weights()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(normal(2, 13, SIZE), training=True) ** 2)
    gradients = tape.gradient(loss, [variable.value for variable in block.trainable_variables])
    assert all(np.any(to_numpy(tf.convert_to_tensor(gradient)) != 0) for gradient in gradients)
    for a, b in zip(before, block.attention.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
