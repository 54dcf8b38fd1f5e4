"""Rematerialization changes only the memory."""

import numpy as np
import tensorflow as tf

from tests.contracts import SIZE, normal, to_numpy, with_random_weights
from tests.layers.remat_models import stateful_block


def test_a_block_has_the_same_gradients_and_losses_and_moves_its_state_once():
    results = []
    for remat in (False, True):
        block = stateful_block(remat)
        block.build((2, 13, SIZE))
        with_random_weights(block)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(block(tf.constant(normal(2, 13, SIZE)), training=True) ** 2) + sum(block.losses)
            gradients = tape.gradient(loss, [variable.value for variable in block.trainable_variables])
        losses = sorted(to_numpy(block.losses))
        results.append([loss, np.array(losses), *gradients, *(variable.value for variable in block.variables)])
    for a, b in zip(*map(to_numpy, results), strict=True):
        scale = max(1.0, np.abs(a).max())
        np.testing.assert_allclose(b / scale, a / scale, rtol=0, atol=1e-5)


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
