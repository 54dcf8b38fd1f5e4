"""Global tokens equal those of a loop over all tokens, and their attention equals dense attention with a mask."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tf_sparse_attention.patterns.global_tokens import find_global


@draws(20, 60)
@given(
    counts=st.integers(1, 13).flatmap(lambda n: st.lists(st.integers(0, 2), min_size=n, max_size=n)),
    padded=st.integers(0, 13),
    num_global=st.integers(1, 9),
)
def test_global_tokens_are_the_first_marked_tokens_without_padding(counts, padded, num_global):
    length = len(counts)
    exists = np.arange(length) >= padded
    tokens = find_global(np.array([counts]), exists[None], num_global)
    wanted = [at for at in range(length) if counts[at] and exists[at]][:num_global]
    marks, positions, found, places = (ops.convert_to_numpy(x)[0] for x in dataclasses.astuple(tokens))
    np.testing.assert_array_equal(np.flatnonzero(marks), wanted)
    np.testing.assert_array_equal(positions, wanted + [length] * (num_global - len(wanted)))
    np.testing.assert_array_equal(found, [counts[at] for at in wanted] + [0] * (num_global - len(wanted)))
    np.testing.assert_array_equal(places[wanted], range(len(wanted)))
