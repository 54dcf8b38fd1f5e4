"""Traces forward and backward of each pattern, and of dense attention, at length 2048 on the backend at hand."""

import keras
import numpy as np
from keras import ops

from tests.ops import arrays
from tests.ops.compare import differentiate
from tests.ops.plans import Plan, draw, sparse
from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.images import Image

LENGTH, WINDOW, BLOCK, HEADS = 2048, 64, 32, 2  # windows of 64 are computed in blocks of 32
BASE = {"batch": 1, "heads": HEADS, "num_queries": LENGTH, "num_keys": LENGTH, "size": 16, "value_size": 16, "reach": 8}
MASKS = {"key_mask": True, "segments": True, "attention_mask": (1, 1, 1, LENGTH)}
ROUTED = {"cluster_size": WINDOW, "num_clusters": LENGTH // WINDOW}
AROUND = {"before": (1, 1), "after": (1, 1)}  # of blocks of 32 pixels: 6 of them in a causal raster, 9 on both sides
RASTER, BLOCKS, CUT = Image(32, (4, 8)), Image(32, (4, 8), "blocks"), Image(31, (4, 8), "blocks", height=67)
PLANS = {
    "window": Plan("local", window=WINDOW, **BASE, **MASKS),
    "window_relative": Plan("local", window=WINDOW, position="relative", **BASE, **MASKS),
    "window_both_sides": Plan("local", window=WINDOW, causal=False, position="alibi", **BASE, **MASKS),
    "blocks": Plan("local", block_size=WINDOW, position="rotary", **BASE, **MASKS),
    "raster": Plan("local_2d", image=RASTER, position="relative", **AROUND, **BASE, **MASKS),
    "raster_both_sides": Plan("local_2d", image=RASTER, causal=False, position="alibi", **AROUND, **BASE, **MASKS),
    "image_blocks": Plan("local_2d", image=BLOCKS, position="rotary", **AROUND, **BASE, **MASKS),
    "cut_image_blocks": Plan("local_2d", image=CUT, causal=False, position="relative", **AROUND, **BASE, **MASKS),
    "strided": Plan("strided", stride=WINDOW, position="relative", **BASE, **MASKS),
    "strided_both_sides": Plan("strided", stride=WINDOW, causal=False, position="alibi", **BASE, **MASKS),
    "fixed": Plan("fixed", block_size=WINDOW, num_summary=3, position="relative", **BASE, **MASKS),
    "fixed_both_sides": Plan("fixed", block_size=WINDOW, causal=False, position="rotary", **BASE, **MASKS),
    "nearest": Plan("nearest", shared=True, mask_self=True, position="relative", **ROUTED, **BASE, **MASKS),
    "nearest_both_sides": Plan("nearest", shared=True, causal=False, position="rotary", **ROUTED, **BASE, **MASKS),
    "nearest_by_token": Plan("nearest", shared=True, position="relative_token", **ROUTED, **BASE, **MASKS),
    "separate": Plan("nearest", position="relative", **ROUTED, **BASE, **MASKS),
    "separate_both_sides": Plan("nearest", causal=False, position="alibi", **ROUTED, **BASE, **MASKS),
    "chunks": Plan("chunks", shared=True, mask_self=True, num_rounds=2, position="relative", **ROUTED, **BASE, **MASKS),
    "top_k": Plan("top_k", causal="position", position="relative", **ROUTED, **BASE, **MASKS),
}
# Elements a query may cost in each head, in units of window + 2 block: places are computed twice with keys of their
# own (queries and keys share the places), and a band on both sides is twice as wide. Dense attention costs 16.
# Strided attention has T / 64 = 32 keys far away, fixed attention up to 3 T / 64 = 96.
FACTOR = {
    "separate": 3,
    "separate_both_sides": 5,
    "window_both_sides": 2,
    "nearest_both_sides": 2,
    "strided_both_sides": 2,
    "raster": 2,
    "raster_both_sides": 3,
    "image_blocks": 2,
    "cut_image_blocks": 3,
}


def bound(name):
    return FACTOR.get(name, 1) * LENGTH * (WINDOW + 2 * BLOCK) * HEADS


def programs():
    """Returns a function of the differentiated inputs and its inputs and cotangent, by name."""
    found = {}
    for name, plan in PLANS.items():
        inputs, masks, cotangent = draw(plan, seed=0)
        found[name] = (lambda x, plan=plan, masks=masks: sparse(plan, x, masks), inputs, cotangent)
    inputs, _, cotangent = draw(PLANS["window"], seed=0)
    found["dense"] = (dense, {name: inputs[name] for name in ("query", "key", "value")}, cotangent)
    return found


def dense(x):
    causal = np.tri(LENGTH, dtype=bool)
    return (attend(x["query"], x["key"], x["value"], mask=ops.convert_to_tensor(causal)).output,)


def quadratic_arrays():
    """Returns {pattern: [arrays that are quadratic in the sequence]}."""
    found = {}
    for name, (function, inputs, cotangent) in programs().items():
        shapes = trace(function, inputs, cotangent)
        found[name] = [f"{kind} {shape}" for kind, shape in arrays.quadratic(shapes, LENGTH, LENGTH, bound(name))]
    return found


def trace(function, inputs, cotangent):
    """Returns the shapes of what forward and backward form."""
    if keras.backend.backend() == "jax":
        import jax

        traced = jax.make_jaxpr(lambda x, c: differentiate(function, x, c)[1])(inputs, cotangent)
        return arrays.shapes_of_jaxpr(traced.jaxpr)
    import tensorflow as tf

    names, specs = list(inputs), [tf.TensorSpec(x.shape, x.dtype) for x in (*inputs.values(), cotangent)]
    traced = tf.function(lambda *x: differentiate(function, dict(zip(names, x[:-1], strict=True)), x[-1])[1])
    return arrays.shapes_of_graph(traced.get_concrete_function(*specs).graph)
