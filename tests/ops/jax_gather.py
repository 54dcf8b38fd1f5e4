"""Row gathers on JAX: values and gradients compared with plain indexing, and scatters in the gradients."""

import numpy as np

from tf_sparse_attention.ops.gather import permute_rows, take_blocks, take_rows, take_unique_rows


def numbers():
    rng = np.random.default_rng(0)
    order = np.argsort(rng.random((2, 3, 7)), axis=-1).astype("int32")
    inverse = np.argsort(order, axis=-1).astype("int32")
    x, cotangent = rng.normal(size=(2, 2, 3, 7, 4)).astype("float32")
    return order, inverse, x, cotangent


def compare_gathers():
    """Return the largest difference from plain indexing, and which gradients hold a scatter, by function."""
    import jax
    import jax.numpy as jnp

    def gradient(function, x, cotangent, *rest):
        return jax.vjp(lambda x: function(x, *rest), x)[1](cotangent)[0]

    def plain(x, index, *rest):
        return jnp.take_along_axis(x, index[..., None], axis=2)

    order, inverse, x, cotangent = numbers()
    # Five of seven rows are picked: those whose place in the order is before the fifth.
    picked = order[..., :5], np.minimum(inverse, 4), inverse < 5
    compiled = jax.jit(gradient, static_argnums=0)
    found = {}
    taken = (
        (permute_rows, (order, inverse)),
        (take_unique_rows, picked),
        (take_rows, (order,)),
        (take_blocks, (order // 2,)),
    )
    for function, rest in taken:
        arguments = x, cotangent[:, :, : rest[0].shape[-1]], *rest
        expected = gradient(plain, *arguments)
        found[function.__name__] = {
            "values": float(abs(jax.jit(function)(x, *rest) - plain(x, *rest)).max()),
            "gradient": float(abs(gradient(function, *arguments) - expected).max()),
            "compiled": float(abs(compiled(function, *arguments) - expected).max()),
            "scatter": "scatter" in str(jax.make_jaxpr(gradient, static_argnums=0)(function, *arguments)),
        }
    return found
