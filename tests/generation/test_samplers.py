"""Samplers and their keys: the published nucleus, exactly k a row, the right distribution, each row by itself."""

from pathlib import Path

import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.generation import fold_in, greedy, keep_likely, keep_nucleus, keep_top_k, row_keys, sample

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "sampling.npz", allow_pickle=False)
LOWEST = np.finfo("float32").min
LOGITS = np.random.default_rng(0).normal(size=(3, 11)).astype("float32") * 2


def array(tensor):
    return ops.convert_to_numpy(tensor)


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def draws(logits, count=4000, **settings):
    """Return how often each id is drawn from one row of logits, as shares."""
    ids = array(sample(np.tile(logits, (count, 1)), row_keys(5, count), **settings))
    return np.bincount(ids, minlength=len(logits)) / count


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.8, 0.9, 0.97])
def test_the_nucleus_is_the_published_one(p):
    kept = array(keep_nucleus(GOLDEN[f"nucleus_p{p}/logits"], p))
    np.testing.assert_array_equal(kept, GOLDEN[f"nucleus_p{p}/out"])


@pytest.mark.parametrize("k", [3, 8])
def test_for_one_row_the_published_top_k_drops_its_threshold_and_is_our_k_less_1(k):
    logits, keep = GOLDEN[f"topk_row0_k{k}/logits"], GOLDEN[f"topk_row0_k{k}/keep"]
    np.testing.assert_array_equal(array(keep_top_k(logits, k - 1)) == logits, keep)


def test_for_one_row_the_published_top_1_keeps_nothing_and_ours_keeps_the_best():
    logits, keep = GOLDEN["topk_row0_k1/logits"], GOLDEN["topk_row0_k1/keep"]
    np.testing.assert_array_equal(keep, np.zeros_like(keep))
    np.testing.assert_array_equal(array(keep_top_k(logits, 1)) == logits, logits == logits.max())


@pytest.mark.parametrize("k", [1, 3, 8])
def test_for_a_batch_the_published_top_k_takes_one_threshold_and_ours_keeps_k_a_row(k):
    logits, keep = GOLDEN[f"topk_batch_k{k}/logits"], GOLDEN[f"topk_batch_k{k}/keep"]
    kth_best = np.sort(logits, axis=-1)[:, -k, None]
    np.testing.assert_array_equal(keep, logits > kth_best.min())
    ours = array(keep_top_k(logits, k)) == logits
    # The last row has many equals at its threshold.
    np.testing.assert_array_equal(ours[:3], (logits >= kth_best)[:3])
    assert (ours.sum(-1) == k).all()


def test_each_row_may_have_its_own_k_and_p():
    np.testing.assert_array_equal((array(keep_top_k(LOGITS, np.array([1, 4, 11]))) == LOGITS).sum(-1), [1, 4, 11])
    together = array(keep_nucleus(LOGITS, np.array([0.2, 0.5, 0.9])))
    alone = [array(keep_nucleus(LOGITS[i : i + 1], p))[0] for i, p in enumerate((0.2, 0.5, 0.9))]
    np.testing.assert_array_equal(together, alone)


def test_the_cuts_are_those_of_a_sorted_row():
    generator = np.random.default_rng(2)
    logits = np.round(generator.normal(size=(6, 300)) * 4, 1).astype("float32")  # many equals, and zeros of both signs
    logits[0], logits[1, ::2], logits[2, :290] = 0, LOWEST, -np.inf
    logits[3] *= 1e-30
    order = np.argsort(-logits, axis=-1, kind="stable")
    ranks = np.argsort(order, axis=-1)
    np.testing.assert_array_equal(array(keep_top_k(logits, 40)), np.where(ranks < 40, logits, LOWEST))
    descending = np.take_along_axis(softmax(logits.astype("float64")), order, axis=-1)
    before = np.take_along_axis(np.cumsum(descending, axis=-1) - descending, ranks, axis=-1)
    np.testing.assert_array_equal(array(keep_nucleus(logits, 0.8317)), np.where(before <= 0.8317, logits, LOWEST))


def test_a_nucleus_of_1_keeps_all_even_where_the_sum_is_rounded_up_and_one_of_0_the_best():
    logits = np.random.default_rng(1).normal(size=(50, 1000)).astype("float32")
    np.testing.assert_array_equal(array(keep_nucleus(logits, 1.0)), logits)
    for p in (0.0, -1.0):  # in a tensor, which may be out of range
        kept = array(keep_nucleus(LOGITS, np.array(p)))
        np.testing.assert_array_equal(kept == LOGITS, LOGITS.max(-1, keepdims=True) == LOGITS)


def test_what_is_likely_beside_the_best_is_kept_for_each_row():
    logits = np.log([[0.5, 0.25, 0.125, 0.125], [0.3, 0.3, 0.3, 0.1]]).astype("float32")
    for min_p, wanted in ((0.4, [2, 3]), (0.0, [4, 4]), (1.0, [1, 3]), (np.array([0.2, 0.5]), [4, 3])):
        np.testing.assert_array_equal((array(keep_likely(logits, min_p)) == logits).sum(-1), wanted)


def test_greedy_takes_the_first_of_the_best():
    np.testing.assert_array_equal(array(greedy([[1.0, 3.0, 3.0], [5.0, 3.0, 3.0]])), [1, 0])


def test_draws_follow_the_softmax_of_logits_divided_by_the_temperature():
    for temperature in (1.0, 3.0):
        expected = softmax(LOGITS[0] / temperature)
        # Four standard deviations of a share at 4,000 draws.
        np.testing.assert_allclose(draws(LOGITS[0], temperature=temperature), expected, atol=4 * np.sqrt(0.25 / 4000))
    ids = array(sample(LOGITS, row_keys(1, 3), temperature=0.0))
    np.testing.assert_array_equal(ids, LOGITS.argmax(-1))


def test_each_row_may_have_its_own_temperature():
    flat = np.tile(np.linspace(0, 1, 50, dtype="float32"), (200, 1))
    ids = array(sample(flat, row_keys(1, 200), temperature=np.array([0.0, 1.0] * 100)))
    assert (ids[::2] == 49).all()
    assert len(np.unique(ids[1::2])) > 20


def test_top_p_and_min_p_apply_after_temperature():
    logits = np.log([0.5, 0.25, 0.125, 0.125]).astype("float32")
    for temperature, cut, count in [
        (0.25, {"top_p": 0.7}, 1),
        (4.0, {"top_p": 0.7}, 3),
        (1.0, {"min_p": 0.3}, 2),
        (4.0, {"min_p": 0.3}, 4),
    ]:
        assert (draws(logits, temperature=temperature, **cut) > 0).sum() == count


def test_ids_at_the_least_float32_are_never_drawn():
    logits = np.where(np.arange(8) == 2, 0, LOWEST).astype("float32")
    assert draws(logits, temperature=0.5)[2] == 1


def test_settings_out_of_range_are_refused(subtests):
    nan, keys = float("nan"), row_keys(1, 3)
    for name, run, values in [
        ("temperature", lambda value: sample(LOGITS, keys, temperature=value), [-0.5, nan, np.inf, np.float32(-1)]),
        ("top_k", lambda value: keep_top_k(LOGITS, value), [0, -2, 2.5]),
        ("top_p", lambda value: keep_nucleus(LOGITS, value), [0, 1.5, nan]),
        ("min_p", lambda value: keep_likely(LOGITS, value), [-0.1, 1.5, nan]),
    ]:
        for value in values:
            with subtests.test(name, value=value), pytest.raises(ValueError, match=f"`{name}`"):
                run(value)


ONES = 2**32 - 1


def test_rows_have_keys_of_their_seed_and_place_whatever_the_batch():
    np.testing.assert_array_equal(array(row_keys(7, 3)), [[7, 0], [7, 1], [7, 2]])
    np.testing.assert_array_equal(array(row_keys(7, 2)), array(row_keys(7, 3))[:2])
    np.testing.assert_array_equal(array(row_keys(np.array([5, 7, 5]), 3)), [[5, 0], [7, 0], [5, 0]])
    keys = np.array([[1, 2], [3, 4]], "uint32")
    np.testing.assert_array_equal(array(row_keys(keys, 2)), keys)


@pytest.mark.parametrize("seed", [-1, ONES, 2**40 + ONES, np.int64(-1), np.array(-1, "int32")])
def test_seeds_count_modulo_two_to_the_32(seed):
    np.testing.assert_array_equal(array(row_keys(seed, 1)), [[ONES, 0]])


def test_keys_of_positions_differ_and_depend_on_their_row_alone():
    keys = np.concatenate([array(fold_in(row_keys(1, 50), np.full(50, at))) for at in range(10)])
    assert len(np.unique(keys, axis=0)) == 500
    np.testing.assert_array_equal(keys[50 * 3 + 4], array(fold_in(row_keys(1, 50)[4:5], np.array([3])))[0])
