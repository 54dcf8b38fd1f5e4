"""A process on the JAX backend with four CPU devices, which computes windows over a sharded sequence.

`JAX_NUM_CPU_DEVICES=4 python -m tests.distribution.sharded_window_worker` prints a line of JSON: for each case the
largest differences of outputs and gradients from attention on one device, and the shape of the part of a device.
"""

import json

import jax
import keras
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from tests.distribution.test_sharded_window import CASES, HEADS, SIZE
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns.engine.attention import attend_pattern

MESHES = {"4": ((4,), ("sequence",), None), "2x2": ((2, 2), ("batch", "sequence"), "batch")}


def on_one_device(query, key, value, window, causal, mask):
    """The layers' own attention of the whole sequence."""
    heads = [ops.swapaxes(x, 1, 2) for x in (query * SIZE**-0.5, key, value)]
    output = attend_pattern(tsa.patterns.Window(window), *heads, causal, TokenMasks(key_mask=mask)).output
    output = ops.swapaxes(output, 1, 2)
    return output if mask is None else ops.where(mask[..., None, None], output, 0)


def compare(case):
    """Return the difference of outputs, of gradients, and the shape of a part."""
    rng = np.random.default_rng(case.length)
    arrays = [rng.standard_normal((2, case.length, HEADS, SIZE)).astype("float32") for _ in range(4)]
    mask = rng.random((2, case.length)) < 0.8 if case.has_padding else None
    shape, names, batch_axis = MESHES[case.mesh]
    mesh = keras.distribution.DeviceMesh(shape, names, keras.distribution.list_devices())

    def divided(query, key, value):
        arguments = {"batch_axis": batch_axis, "causal": case.causal, "padding_mask": mask}
        return tsa.distribution.sharded_window_attention(query, key, value, case.window, mesh, **arguments)

    def whole(query, key, value):
        return on_one_device(query, key, value, case.window, case.causal, mask)

    def outputs_and_gradients(function):
        output, back = jax.vjp(function, *arrays[:3])
        return output, back(arrays[3])

    (found, found_back), (expected, expected_back) = (
        jax.jit(outputs_and_gradients, static_argnums=0)(function) for function in (divided, whole)
    )
    back = max(float(np.max(np.abs(a - b))) for a, b in zip(found_back, expected_back, strict=True))
    return float(np.max(np.abs(found - expected))), back, found.addressable_shards[0].data.shape


if __name__ == "__main__":
    print(json.dumps([compare(case) for case in CASES]))
