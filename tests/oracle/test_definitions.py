"""The patterns of the oracle against cases done by hand."""

import numpy as np

from tests.oracle import attention, definitions
from tests.oracle.definitions import bands, chunks, fixed, image_blocks, local_blocks, strided, window


def pattern(*rows):
    return [[place == "x" for place in row] for row in rows]


# Two rows of three pixels, blocks of one row and one column each: the block above and that to the left are seen.
AROUND = {"before": (1, 1), "after": (1, 0), "order": "raster"}
LACKING, TOKENS = [*"aa", None, "a"], ["a", "b", "c", None, None, None]
# A pattern, and what each query sees.
PATTERNS = [
    (window(4, 4, 2, causal=True), "x... xx.. .xx. ..xx"),
    (window(4, 4, 2, causal=False), "xx.. xxx. .xxx ..xx"),
    (local_blocks(6, 6, 2, before=1, after=1, causal=True), "x..... xx.... xxx... xxxx.. ..xxx. ..xxxx"),
    (local_blocks(6, 6, 2, before=0, after=1, causal=False), "xxxx.. xxxx.. ..xxxx ..xxxx ....xx ....xx"),
    (image_blocks(6, 6, 3, (1, 1), **AROUND, causal=True), "x..... xx.... .xx... x..x.. xx.xx. .xx.xx"),
    (image_blocks(6, 6, 3, (1, 1), **AROUND, causal=False), "x..x.. xx.xx. .xx.xx x..x.. xx.xx. .xx.xx"),
    (strided(6, 6, 2, "far", causal=True), "x..... .x.... x.x... .x.x.. x.x.x. .x.x.x"),
    (strided(6, 6, 3, "merged", causal=True), "x..... xx.... xxx... xxxx.. .xxxx. ..xxxx"),
    (strided(2, 6, 3, "far", causal=False), "x..x.. .x..x."),
    (strided(2, 6, 3, "local", causal=False), "xxx... xxxx.."),
    (fixed(6, 6, 3, 1, 0, "far", causal=True), "...... ...... ..x... ..x... ..x... ..x..x"),
    (fixed(6, 6, 3, 1, 1, "far", causal=True), "...... .x.... .x.... .x.... .x..x. .x..x."),
    (fixed(6, 6, 2, 1, 0, "merged", causal=False), "xx.x.x xx.x.x .xxx.x .xxx.x .x.xxx .x.xxx"),
    (bands("abaaba", "abaaba", 2, causal=True)[0], "x..... .x.... x.x... ..xx.. .x..x. ...x.x"),
    (bands("abaaba", "abaaba", 2, causal=False)[0], "x.x... .x..x. x.xx.. ..xx.x .x..x. ...x.x"),
    (bands("abaaba", "abaaba", 2, causal=True, earlier=True)[0], "...... ...... x..... x.x... .x.... ..xx.."),
    (bands("bba", "aab", 1, causal=True)[0], "... ... .x."),
    (bands(LACKING, LACKING, 2, causal=True)[0], "x... xx.. .... .x.x"),
    # By bucket: 0 3 | 1 4 | 2 5, and the first chunk looks back to the last one.
    (chunks(["abcabc"], ["abcabc"], 2) > 0, "x.xx.x xx.xx. .xx.xx x.xx.x xx.xx. .xx.xx"),
    (chunks([TOKENS], [TOKENS], 1) > 0, "x.x... xx.... .xx... ...... ...... ......"),
    (definitions.chosen_keys([1, 0, 0], [[0, 1, 3], [2]], 4)[0], "..x. xx.x xx.x"),
    (definitions.without_self(np.array(pattern("x..", "xx.", "...")), range(3), range(3)), "x.. x.. ..."),
]


def test_patterns_show_what_a_reader_works_out():
    for number, (found, rows) in enumerate(PATTERNS):
        assert found.tolist() == pattern(*rows.split()), number


def test_pixels_go_row_by_row_or_block_by_block():
    assert definitions.pixels(5, 3, (2, 2), "raster") == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    whole = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    assert definitions.pixels(8, 3, (2, 2), "blocks") == [*whole, (2, 0), (2, 1)]
    assert definitions.pixels(9, 3, (2, 2), "blocks", height=3)[6:] == [(2, 0), (2, 1), (2, 2)]


def test_ranks_count_from_the_last_key_that_the_query_passed():
    assert bands("abaaba", "abaaba", 2, causal=True)[1][5].tolist() == [-3, 0, -2, -1, 0, 0]  # 0, 2, 3, 5 are a group
    assert bands("abaaba", "abaaba", 2, causal=True, earlier=True)[1][5].tolist() == [-3, 0, -2, -1, 0, 0]
    # No key passed yet: the first one is one ahead.
    assert bands("bba", "aab", 1, causal=True)[1].tolist() == [[0, 0, 1], [0, 0, 1], [-1, 0, 0]]
    apart = definitions.chosen_keys([1, 0, 0], [[0, 1, 3], [2]], 4)[1]
    assert apart.tolist() == [[0, 0, 1, 0], [-1, 0, 0, 1], [-1, 0, 0, 1]]


def test_the_first_chunk_of_a_round_looks_back_to_the_last_one_of_the_round_before():
    # Round 0: 0 1 | 2. Round 1: 2 1 | 0. Token 2 sees 0 in one chunk, 1 in two, itself in three.
    assert chunks(["abc", "cba"], ["abc", "cba"], 2).tolist() == [[3, 2, 1], [2, 2, 2], [1, 2, 3]]


def test_members_are_the_best_tokens_strided_ones_or_the_first_of_a_bucket():
    scores, every = np.array([[1.0], [2.0], [1.0], [3.0], [1.0]]), [True] * 6
    assert definitions.best_members(scores, 3, every) == [[0, 1, 3]]  # of equal scores the first tokens
    assert definitions.best_members(scores, 3, [False, True, True, True, True]) == [[1, 2, 3]]
    scores = np.array([[1.0], [5.0], [2.0], [4.0], [3.0], [0.0]])
    assert definitions.strided_members(scores, 2, every) == [[1, 2]]  # the first and the fourth of 1 3 4 2 0 5
    assert definitions.strided_members(scores, 9, every) == [[0, 1, 2, 3, 4, 5]]
    assert definitions.bucket_members([1, 0, 1, 1, 1], 2, 3, every) == [[0, 1, 2], [0, 2, 3]]


def test_slopes_and_rotations_are_those_of_the_papers():
    np.testing.assert_array_equal(attention.slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_array_equal(attention.slopes(3), [1 / 16, 1 / 256, 1 / 4])  # of 2, and the first of 4
    x, y = np.random.default_rng(0).normal(size=(2, 1, 6))
    near = attention.rotate(x, [3]) @ attention.rotate(y, [1]).T
    far = attention.rotate(x, [103]) @ attention.rotate(y, [101]).T
    np.testing.assert_allclose(near, far, rtol=0, atol=1e-12)
