"""Checks of operations on the JAX backend: `run_check` runs one by name in the JAX process."""

import json

import numpy as np
from keras import ops

from tf_sparse_attention.ops.gather import permute_rows, take_blocks, take_rows, take_unique_rows
from tf_sparse_attention.ops.random_bits import random_groups


def run_check(run_jax, name):
    """Return the result of a function of this file on JAX."""
    code = f"import json\nfrom tests.ops import jax_worker\nprint(json.dumps(jax_worker.{name}()))"
    return json.loads(run_jax(code).splitlines()[-1])


def random_groups_of_a_seed():
    """Return groups of three heads at 40 positions."""
    positions = ops.arange(40, dtype="int32")[None]
    return ops.convert_to_numpy(random_groups(positions, 3, 5, 123456789)).tolist()


def gathers():
    """Return the largest difference from plain indexing, and whether the gradient holds a scatter, by function."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    order = np.argsort(rng.random((2, 3, 7)), axis=-1).astype("int32")
    inverse = np.argsort(order, axis=-1).astype("int32")
    x, cotangent = rng.normal(size=(2, 2, 3, 7, 4)).astype("float32")

    def both(function, x, cotangent, *rest):
        value, pull_back = jax.vjp(lambda x: function(x, *rest), x)
        return value, pull_back(cotangent)[0]

    def plain(x, index, *rest):
        return jnp.take_along_axis(x, index[..., None], axis=2)

    compiled, found = jax.jit(both, static_argnums=0), {}
    # Five of seven rows are picked: those whose place in the order is before the fifth.
    picked = order[..., :5], np.minimum(inverse, 4), inverse < 5
    taken = {permute_rows: (order, inverse), take_unique_rows: picked, take_rows: (order,), take_blocks: (order // 2,)}
    for function, rest in taken.items():
        arguments = x, cotangent[:, :, : rest[0].shape[-1]], *rest
        pairs = zip(compiled(function, *arguments), compiled(plain, *arguments), strict=True)
        scatters = "scatter" in str(jax.make_jaxpr(both, static_argnums=0)(function, *arguments))
        found[function.__name__] = max(float(abs(a - b).max()) for a, b in pairs), scatters
    return found
