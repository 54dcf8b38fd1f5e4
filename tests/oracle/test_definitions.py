"""The patterns of the oracle against cases done by hand."""

import numpy as np

from tests.oracle import attention, definitions


def pattern(*rows):
    return [[place == "x" for place in row] for row in rows]


def test_a_causal_window_counts_the_query_itself():
    assert definitions.window(4, 4, 2, causal=True).tolist() == pattern("x...", "xx..", ".xx.", "..xx")


def test_a_window_on_both_sides_leaves_out_the_distance_that_equals_it():
    assert definitions.window(4, 4, 2, causal=False).tolist() == pattern("xx..", "xxx.", ".xxx", "..xx")


def test_causal_blocks_see_the_block_before_and_their_own_up_to_the_query():
    rows = pattern("x.....", "xx....", "xxx...", "xxxx..", "..xxx.", "..xxxx")
    assert definitions.local_blocks(6, 6, 2, before=1, after=1, causal=True).tolist() == rows


def test_blocks_on_both_sides_see_whole_blocks():
    rows = pattern("xxxx..", "xxxx..", "..xxxx", "..xxxx", "....xx", "....xx")
    assert definitions.local_blocks(6, 6, 2, before=0, after=1, causal=False).tolist() == rows


def test_pixels_go_row_by_row_or_block_by_block():
    assert definitions.pixels(5, 3, (2, 2), "raster") == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    whole = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    assert definitions.pixels(8, 3, (2, 2), "blocks") == [*whole, (2, 0), (2, 1)]
    assert definitions.pixels(9, 3, (2, 2), "blocks", height=4)[6:] == [(2, 0), (2, 1), (3, 0)]
    assert definitions.pixels(9, 3, (2, 2), "blocks", height=3)[6:] == [(2, 0), (2, 1), (2, 2)]


def test_blocks_of_an_image_see_their_neighbours_up_to_the_query():
    # Two rows of three pixels, blocks of one row and one column each, the block above and that to the left are seen.
    rows = pattern("x.....", "xx....", ".xx...", "x..x..", "xx.xx.", ".xx.xx")
    around = {"before": (1, 1), "after": (1, 0)}
    assert definitions.image_blocks(6, 6, 3, (1, 1), **around, causal=True, order="raster").tolist() == rows
    rows = pattern("x..x..", "xx.xx.", ".xx.xx", "x..x..", "xx.xx.", ".xx.xx")
    assert definitions.image_blocks(6, 6, 3, (1, 1), **around, causal=False, order="raster").tolist() == rows


def test_causal_strides_count_back_from_the_query_itself():
    rows = pattern("x.....", ".x....", "x.x...", ".x.x..", "x.x.x.", ".x.x.x")
    assert definitions.strided(6, 6, 2, "far", causal=True).tolist() == rows


def test_merged_strides_see_the_last_positions_too():
    rows = pattern("x.....", "xx....", "xxx...", "xxxx..", ".xxxx.", "..xxxx")
    assert definitions.strided(6, 6, 3, "merged", causal=True).tolist() == rows


def test_strides_on_both_sides_go_to_both_ends():
    assert definitions.strided(2, 6, 3, "far", causal=False).tolist() == pattern("x..x..", ".x..x.")
    assert definitions.strided(2, 6, 3, "local", causal=False).tolist() == pattern("xxx...", "xxxx..")


def test_causal_summaries_are_the_last_columns_of_the_blocks_passed():
    rows = pattern("......", "......", "..x...", "..x...", "..x...", "..x..x")
    assert definitions.fixed(6, 6, 3, 1, 0, "far", causal=True).tolist() == rows


def test_the_second_group_of_summaries_is_the_column_before():
    rows = pattern("......", ".x....", ".x....", ".x....", ".x..x.", ".x..x.")
    assert definitions.fixed(6, 6, 3, 1, 1, "far", causal=True).tolist() == rows


def test_fixed_attention_merged_sees_its_block_and_the_summaries():
    rows = pattern("xx.x.x", "xx.x.x", ".xxx.x", ".xxx.x", ".x.xxx", ".x.xxx")
    assert definitions.fixed(6, 6, 2, 1, 0, "merged", causal=False).tolist() == rows


def test_a_causal_band_holds_the_last_keys_of_the_group():
    allowed, apart = definitions.bands("abaaba", "abaaba", 2, causal=True)
    assert allowed.tolist() == pattern("x.....", ".x....", "x.x...", "..xx..", ".x..x.", "...x.x")
    assert apart[5].tolist() == [-3, 0, -2, -1, 0, 0]  # 0, 2, 3, 5 are the group of the last query


def test_a_band_on_both_sides_holds_one_key_less_after_the_query():
    allowed, _ = definitions.bands("abaaba", "abaaba", 2, causal=False)
    assert allowed.tolist() == pattern("x.x...", ".x..x.", "x.xx..", "..xx.x", ".x..x.", "...x.x")


def test_a_query_between_the_keys_of_its_group_ranks_with_the_last_one_passed():
    allowed, apart = definitions.bands("bba", "aab", 1, causal=True)
    assert allowed.tolist() == pattern("...", "...", ".x.")
    assert apart[2].tolist() == [-1, 0, 0]
    assert apart[0].tolist() == [0, 0, 1]  # no key passed yet: the first one is one ahead


def test_a_token_that_does_not_exist_sees_nothing_and_takes_no_place():
    allowed, _ = definitions.bands([*"aa", None, "a"], [*"aa", None, "a"], 2, causal=True)
    assert allowed.tolist() == pattern("x...", "xx..", "....", ".x.x")


def test_a_chunk_sees_itself_and_the_one_before():
    # By bucket: 0 3 | 1 4 | 2 5, and the first chunk looks back to the last one.
    rows = pattern("x.xx.x", "xx.xx.", ".xx.xx", "x.xx.x", "xx.xx.", ".xx.xx")
    assert (definitions.chunks(["abcabc"], ["abcabc"], 2) > 0).tolist() == rows


def test_the_first_chunk_of_a_round_looks_back_to_the_last_one_of_the_round_before():
    # Round 0: 0 1 | 2. Round 1: 2 1 | 0. Token 2 sees 0 in one chunk, 1 in two, itself in three.
    seen = definitions.chunks(["abc", "cba"], ["abc", "cba"], 2)
    assert seen.tolist() == [[3, 2, 1], [2, 2, 2], [1, 2, 3]]


def test_the_last_chunk_is_that_of_the_tokens_that_exist():
    tokens = ["a", "b", "c", None, None, None]
    rows = pattern("x.x...", "xx....", ".xx...", "......", "......", "......")
    assert (definitions.chunks([tokens], [tokens], 1) > 0).tolist() == rows


def test_the_best_members_of_equal_score_are_the_first_ones():
    scores = np.array([[1.0], [2.0], [1.0], [3.0], [1.0]])
    assert definitions.best_members(scores, 3, [True] * 5) == [[0, 1, 3]]
    assert definitions.best_members(scores, 3, [False, True, True, True, True]) == [[1, 2, 3]]


def test_a_query_sees_the_keys_that_its_cluster_chose():
    allowed, apart = definitions.chosen_keys([1, 0, 0], [[0, 1, 3], [2]], 4)
    assert allowed.tolist() == pattern("..x.", "xx.x", "xx.x")
    assert apart[1:].tolist() == [[-1, 0, 0, 1]] * 2
    assert apart[0].tolist() == [0, 0, 1, 0]  # no key passed yet: the first one is one ahead


def test_strided_members_are_near_and_far():
    scores = np.array([[1.0], [5.0], [2.0], [4.0], [3.0], [0.0]])
    assert definitions.strided_members(scores, 2, [True] * 6) == [[1, 2]]  # the first and the fourth of 1 3 4 2 0 5
    assert definitions.strided_members(scores, 2, [True, True, False, True, False, False]) == [[1, 3]]
    assert definitions.strided_members(scores, 9, [True] * 6) == [[0, 1, 2, 3, 4, 5]]


def test_a_bucket_with_too_few_tokens_is_filled_with_the_first_others():
    assert definitions.bucket_members([1, 0, 1, 1, 1], 2, 3, [True] * 5) == [[0, 1, 2], [0, 2, 3]]
    assert definitions.bucket_members([1, 0, 1, 1, 1], 2, 3, [False, True, True, False, True]) == [[1, 2, 4], [1, 2, 4]]


def test_self_is_left_out_unless_it_is_alone():
    allowed = np.array(pattern("x..", "xx.", "..."))
    assert definitions.without_self(allowed, range(3), range(3)).tolist() == pattern("x..", "x..", "...")


def test_the_slopes_of_8_heads_are_the_powers_of_one_half():
    np.testing.assert_array_equal(attention.slopes(8), 0.5 ** np.arange(1, 9))


def test_the_slopes_of_3_heads_are_those_of_2_and_the_first_of_4():
    np.testing.assert_array_equal(attention.slopes(3), [1 / 16, 1 / 256, 1 / 4])


def test_turned_vectors_know_only_their_distance():
    x, y = np.random.default_rng(0).normal(size=(2, 1, 6))
    near = attention.rotate(x, [3]) @ attention.rotate(y, [1]).T
    far = attention.rotate(x, [103]) @ attention.rotate(y, [101]).T
    np.testing.assert_allclose(near, far, rtol=0, atol=1e-12)
