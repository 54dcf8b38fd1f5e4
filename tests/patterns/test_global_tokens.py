"""Global tokens equal those of a loop over all tokens, and their attention equals dense attention with a mask."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.patterns.small_cases import attend_pattern, selecting
from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.masks import TokenMasks, dense_mask
from tf_sparse_attention.patterns import Call, Union, Window
from tf_sparse_attention.patterns.engine.dense_reference import dense_pattern
from tf_sparse_attention.patterns.global_tokens import Global, GlobalQueries, find_global


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


def test_without_padding_every_mark_counts():
    tokens = find_global(np.array([[True, False, True]]), None, 2)
    np.testing.assert_array_equal(tokens.positions, [[0, 2]])


def test_masks_of_a_call_hold_for_global_tokens_too():
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 2, 2, 9, 4)).astype("float32")
    segments = ops.convert_to_tensor(np.arange(9)[None].repeat(2, 0) // 5)
    masks = TokenMasks(
        key_mask=ops.convert_to_tensor(np.arange(9) < np.array([[9], [7]])),
        attention_mask=ops.convert_to_tensor(rng.random((2, 2, 9, 9)) < 0.7),
        query_segments=segments,
        key_segments=segments,
    )
    tokens = find_global(np.arange(9)[None].repeat(2, 0) % 4 == 1, masks.key_mask, 4)
    near = np.abs(np.subtract.outer(np.arange(9), np.arange(9))) < 2
    marks = ops.convert_to_numpy(tokens.marks)
    options = {"masks": masks, "return_weights": True}
    heads = query, key, value
    others = attend_pattern(Union((Global(4), Window(2))), *heads, select=selecting(tokens, None), **options)
    own = attend_pattern(GlobalQueries(4), *heads, select=selecting(tokens), **options)
    seen = near | marks[:, None, None, :] | marks[:, None, :, None]
    wanted = attend(*heads, mask=dense_mask(seen, masks), return_weights=True)
    rows = marks[:, None, :, None]
    for name in ("output", "weights"):
        attended = np.where(rows, getattr(own, name), getattr(others, name))
        np.testing.assert_allclose(attended, getattr(wanted, name), atol=1e-5)
    twin = dense_pattern(Union((Global(4), Window(2))), Call(2, 9, 9), 2, selections=[tokens, None])
    np.testing.assert_array_equal(twin, np.broadcast_to(near | marks[:, None, None, :], (2, 2, 9, 9)))
