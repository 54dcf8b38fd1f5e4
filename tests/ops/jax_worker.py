"""What the tests want to know of JAX, in a process with that backend: `CHECKS[name]()`.

`families` compiles sixteen programs, feeds them many numbers, masks and documents, and compares with the dense twins;
`free` compiles a program for each configuration that Hypothesis draws; the others return what
tests compare. Results can be written as JSON.
"""

import collections

from hypothesis import HealthCheck, given, settings
from keras import ops

from tests.ops import strategies
from tests.ops.causal_forms import look_ahead_of_all
from tests.ops.compare import assert_equals_dense
from tests.ops.forms import random_clusters
from tests.ops.jax_gather import compare_gathers
from tests.ops.linear_memory import quadratic_arrays
from tests.ops.plans import Plan
from tf_sparse_attention.ops.images import Image

MASKED = {"key_mask": True, "segments": True, "return_weights": True}
CROSS = {"num_queries": 31, "num_keys": 41, "attention_mask": (2, 31, 41)}
RASTER = {"image": Image(6, (2, 4)), "before": (1, 1), "after": (1, 0)}
BLOCKS = {"image": Image(7, (4, 3), "blocks", height=6), "before": (1, 1), "after": (1, 1)}
SELF = {"num_queries": 37, "num_keys": 37, "attention_mask": (37, 37)}
# Each family has at least 200 draws, on sixteen shapes in all.
FIXED = [
    (100, "local", Plan("local", window=9, position="relative", **SELF, **MASKED)),
    (100, "local", Plan("local", causal=False, block_size=5, after=2, position="alibi", heads=3, **CROSS, **MASKED)),
    (100, "local_2d", Plan("local_2d", **RASTER, position="relative", **SELF, **MASKED)),
    (100, "local_2d", Plan("local_2d", causal=False, **BLOCKS, position="alibi", heads=3, **CROSS, **MASKED)),
    (100, "strided", Plan("strided", stride=5, position="relative", **SELF, **MASKED)),
    (100, "strided", Plan("strided", causal=False, stride=7, position="alibi", heads=3, **CROSS, **MASKED)),
    (100, "fixed", Plan("fixed", block_size=4, num_summary=2, group=1, position="relative", **SELF, **MASKED)),
    (100, "fixed", Plan("fixed", causal=False, block_size=6, part="far", position="rotary", **CROSS, **MASKED)),
    (100, "nearest", Plan("nearest", shared=True, mask_self=True, position="rotary", **SELF, **MASKED)),
    (
        100,
        "nearest",
        Plan("nearest", shared=True, causal=False, cluster_size=20, position="relative", **SELF, **MASKED),
    ),
    (200, "separate", Plan("nearest", mask_self=True, cluster_size=5, position="relative", **CROSS, **MASKED)),
    (200, "random", Plan("random", shared=True, position="alibi", heads=3, **SELF, **MASKED)),
    (
        100,
        "top_k",
        Plan("top_k", shared=True, causal="position", mask_self=True, position="relative", **SELF, **MASKED),
    ),
    (100, "top_k", Plan("top_k", causal=None, cluster_size=7, position="relative_token", **CROSS, **MASKED)),
    (100, "chunks", Plan("chunks", shared=True, mask_self=True, num_rounds=3, position="relative", **SELF, **MASKED)),
    (100, "chunks", Plan("chunks", causal=False, cluster_size=5, num_rounds=2, position="rotary", **SELF, **MASKED)),
]
FREE = {
    "local": strategies.local_plans(),
    "local_2d": strategies.local_2d_plans(),
    "strided": strategies.strided_plans(),
    "fixed": strategies.fixed_plans(),
    "nearest": strategies.nearest_plans(shared=True),
    "separate": strategies.nearest_plans(shared=False),
    "random": strategies.random_plans(),
    "top_k": strategies.top_k_plans(),
    "chunks": strategies.chunk_plans(),
}


def compare_fixed():
    counts = collections.Counter()
    for number, family, plan in FIXED:
        for seed in range(number):
            assert_equals_dense(plan, seed)
        counts[family] += number
    return counts


def compare_free(examples=50):
    counts = {}
    for family, plans in FREE.items():
        counts[family] = count_compared(plans, examples)
    return counts


def count_compared(plans, examples):
    """Compares what Hypothesis draws and returns how many different configurations it was."""
    drawn = set()

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(plans, strategies.SEED)
    def compare(plan, seed):
        plan = plan._replace(dtype="float32")  # JAX has no float64 unless told so before it starts
        drawn.add(plan)
        assert_equals_dense(plan, seed)

    compare()
    return len(drawn)


def clusters():
    return ops.convert_to_numpy(random_clusters(3, 40, 5, seed=123456789)).tolist()


CHECKS = {
    "families": compare_fixed,
    "free": compare_free,
    "causality": look_ahead_of_all,
    "gather": compare_gathers,
    "quadratic": quadratic_arrays,
    "clusters": clusters,
}
