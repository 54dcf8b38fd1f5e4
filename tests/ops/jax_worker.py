"""Checks of operations in a process with the JAX backend: prints the result of `CHECKS[name]()` as JSON."""

import keras
import numpy as np
from keras import ops

from tests.ops.attend_numbers import draw, numbers
from tests.ops.jax_gather import compare_gathers
from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.random_bits import random_groups


def random_groups_of_a_seed():
    """Groups of three heads at 40 positions."""
    positions = ops.arange(40, dtype="int32")[None]
    return ops.convert_to_numpy(random_groups(positions, 3, 5, 123456789)).tolist()


def gradients_in_programs():
    """How far gradients of output and log-sum-exp are from those by way of the weights, for each kind of program."""
    import jax

    inputs = [np.float32(draw(2, 5, 4, seed=seed)) for seed in range(3)]

    def total(query, key, value, return_weights):
        mask = ops.any(query > 0, axis=-1, keepdims=True) & (np.arange(5) < 3)
        returned = {"return_weights": return_weights, "return_log_sum_exp": True}
        attended = attend(query, key, value, mask=mask, **returned)
        return ops.sum(attended.output**2) + ops.sum(ops.maximum(attended.log_sum_exp, -100.0))

    def gradients(program, return_weights):
        return jax.grad(program(lambda *rows: total(*rows, return_weights)), (0, 1, 2))(*inputs)

    differences = {}
    for name, program in {"eager": lambda function: function, "jit": jax.jit, "remat": keras.remat}.items():
        pairs = zip(gradients(program, False), gradients(program, True), strict=True)
        differences[name] = max(float(np.abs(numbers(one) - numbers(other)).max()) for one, other in pairs)
    return differences


CHECKS = {"attend": gradients_in_programs, "gather": compare_gathers, "groups": random_groups_of_a_seed}
