"""No array of any layer is quadratic in the sequence, forward or backward, at length 2048, on either backend."""

import json

import keras
import numpy as np
import pytest

from tests import arrays
from tests.draws import first
from tests.programs import differentiate
from tf_sparse_attention import layers
from tf_sparse_attention.patterns import Blocks, Dilated, Heads, Nearest, Stride, Summary, Window

LENGTH, WINDOW, HEADS, SIZE = 2048, 64, 2, 8
NEAR = {"num_heads": HEADS, "key_dim": 16, "window": WINDOW}
BLOCK = {"num_heads": HEADS, "key_dim": 16, "block_size": WINDOW}
IMAGE = {"num_heads": HEADS, "key_dim": 16, "block_shape": (4, 8)}  # 6 blocks in a causal raster, 9 on both sides
MERGED = {"num_heads": HEADS, "key_dim": 16, "heads": "merged"}
ROUTED = {"num_heads": HEADS, "key_dim": 16, "num_clusters": LENGTH // WINDOW, "cluster_size": WINDOW}
HASHED = {"num_heads": HEADS, "key_dim": 16, "num_buckets": LENGTH // WINDOW, "bucket_size": WINDOW, "num_rounds": 2}
FACTORIZED = Heads([(1, Blocks(32, 1) | Summary(32, 2)), (1, Window(32) | Stride(WINDOW) | Dilated(16, 8))])
# Name: function that makes the layer, whether the call is causal, and the elements that a query may cost in each head
# in units of 128, a window of 64 in blocks of 32: slots are computed twice with keys of their own, a band on both
# sides is twice as wide, a round a pattern of its own, and a union twice the sum of its parts.
# Dense attention costs 16. Strided attention has T / 64 = 32 keys far away, fixed attention up to 3 T / 64 = 96.
LAYERS = {
    "separate": (lambda: layers.RoutingAttention(**ROUTED, share_qk=False, selection="nearest"), False, 5),
    "raster": (lambda: layers.LocalAttention2D(**IMAGE, width=32, position="relative", max_distance=8), True, 2),
    "clustered": (lambda: layers.ClusteredAttention(HEADS, 16, num_clusters=16, top_k=16), False, 2),
    "window": (lambda: layers.LocalAttention(**NEAR, position="relative"), True, 1),
    "span_both_sides": (lambda: layers.LocalAttention(**NEAR, position="alibi", adaptive_span={"ramp": 8}), False, 2),
    "image_blocks": (lambda: layers.LocalAttention2D(**IMAGE, width=31, height=67, order="blocks"), False, 3),
    "strided": (lambda: layers.StridedAttention(**MERGED, stride=WINDOW, position="relative", max_distance=8), True, 1),
    "fixed": (lambda: layers.FixedAttention(**MERGED, block_size=WINDOW, num_summary=3), True, 1),
    "nearest_by_token": (lambda: layers.RoutingAttention(**ROUTED, position="relative", distance="token"), True, 1),
    "top_k": (lambda: layers.RoutingAttention(**ROUTED, selection="top_k", share_qk=False), False, 1),
    "top_keys": (lambda: layers.RoutingAttention(**ROUTED, share_qk=False, selection="top_keys"), False, 2),
    "lsh": (lambda: layers.LSHAttention(**HASHED), True, 2),
    "chunks": (lambda: layers.LSHAttention(**HASHED, selection="chunks"), False, 2),
    "all": (lambda: layers.AllAttention(**NEAR, num_persistent=8, position="rotary"), True, 1),
    "global": (lambda: layers.GlobalLocalAttention(**NEAR, num_global=4, num_first_global=4), False, 2),
    "routed": (lambda: layers.SparseAttention(HEADS, 16, Window(32) | Nearest(LENGTH // WINDOW, WINDOW)), True, 6),
    "factorized": (lambda: layers.SparseAttention(HEADS, 16, FACTORIZED), True, 4),
}


def dense_attention():
    """Keras's own layer, whose scores the same look has to find."""
    return keras.layers.MultiHeadAttention(HEADS, 16, flash_attention=False)


def quadratic_arrays(name):
    """Return the arrays of a layer of `LAYERS`, or of "dense" attention, that are quadratic in the sequence."""
    make, causal, cost = LAYERS.get(name, (dense_attention, True, 1))
    layer, x = make(), np.random.default_rng(0).standard_normal((1, LENGTH, SIZE)).astype("float32")
    if name == "dense":
        shapes = trace(lambda x: (layer(x["x"], x["x"], use_causal_mask=causal),), x)
    else:
        masks = {"query_mask": np.arange(LENGTH)[None] < LENGTH - 9}
        if name not in ("clustered", "top_keys"):
            masks["segment_ids"] = np.arange(LENGTH)[None] // 700
        layer.build(x.shape)
        shapes = trace(lambda x: (layer(x["x"], use_causal_mask=causal, training=True, **masks),), x)
    found = arrays.quadratic(shapes, LENGTH, LENGTH, cost * LENGTH * 2 * WINDOW * HEADS)
    return [f"{kind} {shape}" for kind, shape in found]


def trace(function, x):
    """Return the shapes of what forward and backward of a function of {"x": x} form."""
    if keras.backend.backend() == "jax":
        import jax

        traced = jax.make_jaxpr(lambda x: differentiate(function, {"x": x}, x)[1])(x)
        return arrays.shapes_of_jaxpr(traced.jaxpr)
    import tensorflow as tf

    traced = tf.function(lambda x: differentiate(function, {"x": x}, x)[1])
    return arrays.shapes_of_graph(traced.get_concrete_function(tf.TensorSpec(x.shape, x.dtype)).graph)


JAX = """
import json
from tests.layers.test_linear_memory import quadratic_arrays
print(json.dumps(quadratic_arrays({name!r})))
"""


@pytest.mark.parametrize("name", first(list(LAYERS), 3))
def test_no_array_is_quadratic_in_the_sequence(name):
    assert quadratic_arrays(name) == []


@pytest.mark.full
@pytest.mark.parametrize("name", first(list(LAYERS), 1))
def test_no_array_is_quadratic_in_the_sequence_on_jax(run_jax, name):
    assert json.loads(run_jax(JAX.format(name=name))) == []


@pytest.mark.full
def test_the_check_finds_the_scores_of_dense_attention_on_both_backends(run_jax):
    assert any("MatMul" in array or "Einsum" in array for array in quadratic_arrays("dense"))
    assert any("dot_general" in array for array in json.loads(run_jax(JAX.format(name="dense"))))
