"""Decoding of drawn layers, and of mixtures of them, against one causal call for the whole sequence."""

import functools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests import drawn
from tests.contracts import with_random_weights
from tests.programs import as_program, compiled_on_jax
from tf_sparse_attention import layers

SIZE = 6
LONGEST = 26
VARIANTS = ("all", "split", "head_split", "single_head")
KINDS = {
    "local": drawn.local,
    "local_2d": drawn.local_2d,
    "all_attention": lambda: drawn.all_attention(VARIANTS),
    "strided": drawn.strided,
    "fixed": drawn.fixed,
    "routing": drawn.routing,
    "lsh": drawn.lsh,
    "selected": drawn.selected,
    "native": drawn.native,
    "sparse": drawn.sparse,
}


def compare_drawn(kind, wanted):
    """Compare drawn layers on two rows with prompts of different lengths.

    Returns:
        Pair of the number of draws and the largest difference.
    """
    errors = []

    @settings(max_examples=wanted, deadline=None, database=None)
    @given(
        drawn.made(KINDS, kind),
        st.integers(1, LONGEST),
        st.lists(st.integers(0, LONGEST), min_size=2, max_size=2),
        st.integers(0, 999),
    )
    def compare(make, length, prompts, seed):
        layer = make()
        layer.build((None, None, SIZE))
        with_random_weights(layer, seed)
        x = np.random.default_rng(seed).normal(size=(2, length, SIZE)).astype("float32")
        errors.append(largest_error(layer, x, np.minimum(prompts, length)))

    compare()
    return len(errors), float(max(errors))


@st.composite
def remembering(draw):
    """Draw functions that make a layer that accepts a memory, without successor values."""
    local = drawn.local().filter(lambda part: not part[1].get("use_successor_values"))
    parts = draw(st.lists(st.one_of(local, KINDS["all_attention"]()), min_size=1, max_size=3))
    made = [lambda kind=kind, arguments=arguments: kind(**arguments) for kind, arguments in parts]
    return made[0] if len(made) == 1 else lambda: layers.MixedAttention([make() for make in made])


def compare_remembered(wanted):
    """Compare drawn layers that go on from a memory, which rows see in part; return as `compare_drawn` does."""
    errors = []

    @settings(max_examples=wanted, deadline=None, database=None)
    @given(
        remembering(),
        st.tuples(st.integers(1, LONGEST), st.integers(1, LONGEST)),
        st.lists(st.integers(0, LONGEST), min_size=2, max_size=2),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(0, 999),
    )
    def compare(make, sizes, prompts, share, seed):
        layer = make()
        layer.build((None, None, SIZE))
        with_random_weights(layer, seed)
        rng = np.random.default_rng(seed)
        x, memory = (rng.normal(size=(2, length, SIZE)).astype("float32") for length in sizes)
        seen = rng.random((2, sizes[1])) < share
        errors.append(largest_error(layer, x, np.minimum(prompts, sizes[0]), (memory, seen)))

    compare()
    return len(errors), float(max(errors))


def largest_error(layer, x, lengths, memory=None):
    """Return the largest difference between decoding and one causal call.

    Args:
        layer: a built attention layer.
        x: its inputs (B, T, D).
        lengths: int (B,), tokens of each row that are a prompt; the others come one by one.
        memory: pair of a memory (B, L, D) and which slots of it are seen, bool (B, L). None: none.
    """
    batch, length = x.shape[:2]
    cache, given = layer.init_cache(batch, length, *(memory or ())), {}
    if memory is not None:
        given = {"memory": memory[0], "memory_segment_ids": np.where(memory[1], 0, -1)}
    whole = ops.convert_to_numpy(compiled_on_jax(functools.partial(layer, use_causal_mask=True))(x, **given))
    rows, worst, decode = np.arange(batch), 0.0, as_program(layer.decode)
    longest = int(lengths.max())
    if longest:
        known = np.arange(longest) < lengths[:, None]
        given, cache = compiled_on_jax(layer.prefill)(x[:, :longest], cache, known)
        given = ops.convert_to_numpy(given)
        worst = max(np.abs(given[row, :count] - whole[row, :count]).max(initial=0) for row, count in enumerate(lengths))
    for step in range(length - int(lengths.min())):
        goes_on = lengths + step < length
        index = np.minimum(lengths + step, length - 1)
        found, cache = decode(x[rows, index][:, None], cache, np.where(goes_on, index, -1))
        apart = np.abs(ops.convert_to_numpy(found)[:, 0] - whole[rows, index])[goes_on]
        worst = max(worst, apart.max(initial=0))
    return worst
