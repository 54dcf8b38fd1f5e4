"""What the tests of operations want to know of JAX, in a process with that backend: `CHECKS[name]()`, as JSON."""

from keras import ops

from tests.ops.jax_gather import compare_gathers
from tf_sparse_attention.ops.random_groups import random_groups


def random_groups_of_a_seed():
    """Groups of three heads at 40 positions."""
    positions = ops.arange(40, dtype="int32")[None]
    return ops.convert_to_numpy(random_groups(positions, 3, 5, 123456789)).tolist()


CHECKS = {"gather": compare_gathers, "groups": random_groups_of_a_seed}
