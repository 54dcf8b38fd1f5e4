"""Weights that start as zeros because they are overwritten, and those that do not."""

import threading

import keras
import pytest

from tf_sparse_attention.models import Backbone, NormOptions
from tf_sparse_attention.models.rebuilding import initialize_with_zeros, rebuilt_backbone

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends draw random numbers")


def kernel(initializer="glorot_uniform"):
    layer = keras.layers.Dense(3, kernel_initializer=initializer)
    layer.build((None, 4))
    return keras.ops.convert_to_numpy(layer.kernel)


@pytest.mark.parametrize("initializer", ["glorot_uniform", "orthogonal", keras.initializers.RandomNormal(seed=3)])
def test_random_numbers_are_zeros_inside_of_the_block_and_in_its_thread_alone(initializer):
    original, found = keras.layers.Layer.add_weight, []
    with initialize_with_zeros():
        inside = kernel(initializer)
        thread = threading.Thread(target=lambda: found.append(kernel(initializer)))
        thread.start()
        thread.join()
        assert keras.layers.Layer.add_weight is original
    assert inside.shape == (4, 3) and not inside.any()
    assert found[0].any() and kernel(initializer).any()


def test_random_numbers_of_a_state_are_drawn_and_leave_it_usable():
    keras.utils.clear_session()  # the generator of the process is made at first use
    seeded = keras.initializers.TruncatedNormal(seed=keras.random.SeedGenerator(4))
    with initialize_with_zeros():
        assert kernel(seeded).any() and kernel(lambda shape, dtype: keras.random.normal(shape, dtype=dtype)).any()
    assert keras.ops.convert_to_numpy(keras.random.normal((3,))).any()


def test_changes_that_add_or_drop_weights_are_refused():
    part = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}
    backbone = Backbone(None, 1, 4, [part], intermediate_dim=4, norm=NormOptions("pre", 1e-3))
    for changes in ({"intermediate_dim": None}, {"norm": "post"}, {"num_layers": 2}):
        with pytest.raises(ValueError, match="`changes`"):
            rebuilt_backbone(backbone, **changes)
    kept = rebuilt_backbone(backbone, norm="pre", dropout=0.5).get_config()
    assert kept["norm"] == {"placement": "pre", "epsilon": 1e-3} and kept["dropout"]["residual"] == 0.5
    kept["attention"]["parts"].append("changed")
    assert backbone.get_config()["attention"]["parts"] == [part]
