"""Adagrad compared with the published implementation, and the effect of clipping."""

import keras
import numpy as np
import pytest

from tests.goldens import goldens_of, read_case
from tf_sparse_attention.optimizers import Adafactor, Adagrad, Constant

CASES = ("clip_active", "clip_inactive", "clip_lrdecay_acc", "clip_mixed", "noclip_warmup")

goldens = goldens_of("torch_peers/all_attention.npz")


def schedule_of(settings):
    if settings["lr_decay"]:
        return keras.optimizers.schedules.InverseTimeDecay(settings["lr"], 1, settings["lr_decay"])
    return Constant(settings["lr"], settings["warmup"])


@pytest.mark.parametrize("name", CASES)
def test_every_step_equals_the_published_one(goldens, name):
    settings, arrays = read_case(goldens, f"adagrad_{name}")
    weights = [keras.Variable(arrays[f"p{j}/w0"], name=f"p{j}") for j in range(settings["n_params"])]
    start = settings["initial_accumulator_value"]
    optimizer = Adagrad(schedule_of(settings), clip=settings["grad_clip"] or None, initial_accumulator_value=start)
    for step in range(1, settings["steps"] + 1):
        rate = arrays["lr_per_step"][step - 1] / (1 + (step - 1) * settings["lr_decay"])  # kept before its decay
        np.testing.assert_allclose(float(optimizer.learning_rate), rate, rtol=1e-6)
        optimizer.apply([keras.ops.convert_to_tensor(arrays[f"p{j}/g{step}"]) for j in range(len(weights))], weights)
        for j, weight in enumerate(weights):
            np.testing.assert_allclose(weight.numpy(), arrays[f"p{j}/w{step}"], rtol=0, atol=2e-6)
            total = next(v for v in optimizer.variables if v.name.startswith(f"p{j}"))
            np.testing.assert_allclose(total.numpy(), arrays[f"p{j}/sum{step}"], rtol=1e-6)


def test_each_weight_is_clipped_by_its_own_norm_in_the_step_but_not_in_the_accumulated_gradient():
    weights = [keras.Variable([0.0, 0.0]), keras.Variable([0.0]), keras.Variable([1.0, 2.0])]
    gradients = [[3.0, 4.0], [0.25], [0.0, 0.0]]
    optimizer = Adagrad(1.0, clip=0.5)
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], weights)
    # The first norm is 5, a tenth of the step is taken: 0.1 * g / |g| = 0.1 each. The sum is that of all the gradient.
    np.testing.assert_allclose(weights[0].numpy(), [-0.1, -0.1], rtol=1e-6)
    np.testing.assert_allclose(optimizer.variables[2].numpy(), [9.0, 16.0])
    np.testing.assert_allclose(weights[1].numpy(), [-1.0], rtol=1e-6)
    np.testing.assert_array_equal(weights[2].numpy(), [1.0, 2.0])


@pytest.mark.parametrize("make", [lambda: Adagrad(0.1, clip=0.03), lambda: Adafactor(0.1, beta_1=0.5)])
def test_an_embedding_takes_the_same_steps_as_its_dense_gradient(make):
    ids = np.array([[1, 1, 3]])
    layer = keras.layers.Embedding(5, 2)
    model = keras.Sequential([layer])
    model.build((None, 3))
    before = layer.get_weights()[0]
    model.compile(make(), loss=lambda y, x: keras.ops.sum(x, axis=(1, 2)))
    model.train_on_batch(ids, np.zeros((1, 1)))
    dense = keras.Variable(before)
    gradient = np.zeros((5, 2), "float32")
    np.add.at(gradient, ids[0], 1.0)
    make().apply([keras.ops.convert_to_tensor(gradient)], [dense])
    np.testing.assert_allclose(layer.get_weights()[0], dense.numpy(), atol=1e-7)


def test_the_configuration_round_trip_keeps_the_optimizer():
    optimizer = Adagrad(Constant(0.07, 32_000), clip=None, initial_accumulator_value=0.1, epsilon=1e-8)
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is Adagrad and copy.get_config() == optimizer.get_config()


def test_a_bfloat16_weight_keeps_a_float32_sum():
    weight = keras.Variable([1.0, 1.0], dtype="bfloat16")
    optimizer = Adagrad(0.5, clip=None)
    optimizer.apply([keras.ops.cast(keras.ops.convert_to_tensor([1.0, 2.0]), "bfloat16")], [weight])
    assert optimizer.variables[2].dtype == "float32"
    np.testing.assert_allclose(keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32")), [0.5, 0.5])


def test_a_wrong_argument_is_named():
    for arguments in ({"clip": 0}, {"clip": "a"}, {"initial_accumulator_value": -1.0}, {"epsilon": 0.0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Adagrad(**arguments)
