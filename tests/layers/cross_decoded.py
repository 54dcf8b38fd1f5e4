"""Cross-attention of drawn layers, and of mixtures of them, query by query against one call for all queries."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests.contracts import with_random_weights
from tests.drawn import (
    all_attention,
    fixed,
    local,
    local_2d,
    lsh,
    made,
    routing,
    sparse,
    sparse_top_keys,
    strided,
    top_keys,
    unequal_blocks,
)
from tests.layers.decoded import LONGEST, SIZE, VARIANTS
from tests.programs import as_program, compiled_on_jax
from tf_sparse_attention.patterns.pattern import primitives


def crossing(kind, **changes):
    """Draw layers of a kind that take another sequence, which those that require causal self-attention do not."""
    return kind().filter(lambda made: not _must_be_causal(**made[1])).map(lambda made: (made[0], made[1] | changes))


def _must_be_causal(pattern=None, use_successor_values=False, **others):
    return use_successor_values or (pattern is not None and any(leaf.must_be_causal for leaf in primitives(pattern)))


KINDS = {
    "local": lambda: crossing(local),
    "unequal_blocks": unequal_blocks,
    "all_attention": lambda: all_attention(VARIANTS),
    "routing": lambda: st.one_of(
        crossing(routing, selection="nearest", share_qk=False), crossing(routing, selection="random", share_qk=False)
    ),
    "lsh": lambda: crossing(lsh, share_qk=False),
    "local_2d": local_2d,
    "strided": strided,
    "fixed": fixed,
    "sparse": lambda: crossing(sparse, share_qk=False),
    "top_keys": top_keys,
    "sparse_top_keys": lambda: crossing(sparse_top_keys, share_qk=False),
}
OF_CONTENT = ("routing", "lsh", "sparse", "mixed")  # queries and keys are as many


def compare_drawn(kind, wanted):
    """Compare drawn layers on rows whose queries come in different orders, with masks and without.

    Returns:
        Pair of the number of draws and the largest difference.
    """
    errors, lengths, masks = [], st.integers(1, LONGEST), st.sampled_from([(), ("value",), ("key", "value")])

    @settings(max_examples=wanted, deadline=None, database=None)
    @given(made(KINDS, kind), lengths, lengths, masks, st.integers(0, 999))
    def compare(make, num_queries, num_keys, masked, seed):
        num_keys = num_queries if kind in OF_CONTENT else num_keys
        layer, rng = make(), np.random.default_rng(seed)
        layer.build((None, None, SIZE), (None, None, SIZE - 1), (None, None, SIZE - 2))
        with_random_weights(layer, seed)
        sizes = ((num_queries, SIZE), (num_keys, SIZE - 1), (num_keys, SIZE - 2))
        query, value, key = (rng.normal(size=(2, *size)).astype("float32") for size in sizes)
        masks = {f"{name}_mask": rng.random((2, num_keys)) < 0.7 for name in masked}
        errors.append(largest_error(layer, query, {"value": value, "key": key, **masks}, rng))

    compare()
    return len(errors), float(max(errors))


def largest_error(layer, query, given, rng):
    """Return the largest difference between single queries, each row in an order of its own, and one call for all."""
    whole = ops.convert_to_numpy(compiled_on_jax(layer)(query, **given))
    cache, rows, worst = layer.init_cross_cache(**given), np.arange(len(query)), 0.0
    decode = as_program(layer.decode_cross)
    for index in rng.permuted(np.tile(np.arange(query.shape[1]), (len(query), 1)), axis=1).T:
        found = decode(query[rows, index][:, None], cache, index.astype("int32"))
        worst = max(worst, np.abs(ops.convert_to_numpy(found)[:, 0] - whole[rows, index]).max())
    return worst
