"""Each sparse attention equals dense attention under its pattern's mask, outputs and gradients, whatever is drawn."""

import pytest
from hypothesis import given, settings

from tests.ops import strategies
from tests.ops.compare import assert_equals_dense


def quick_or_whole(quick, whole):
    """Fewer configurations are drawn by default than by `make test-full`, and there than by `make test-large`."""
    more = [pytest.param(quick, marks=pytest.mark.full), pytest.param(whole, marks=pytest.mark.large)]
    return pytest.mark.parametrize("wanted", [quick // 3, *more])


def assert_all_equal_dense(plans, wanted):
    """Compares what Hypothesis draws and makes sure that it was at least so many different configurations."""
    drawn = set()

    @settings(max_examples=wanted + 20)
    @given(plans, strategies.SEED)
    def compare(plan, seed):
        drawn.add(plan)
        assert_equals_dense(plan, seed)

    compare()
    assert len(drawn) >= wanted


@quick_or_whole(100, 200)
def test_local_equals_dense_attention(wanted):
    assert_all_equal_dense(strategies.local_plans(), wanted)


@quick_or_whole(30, 100)
def test_local_on_images_equals_dense_attention(wanted):
    assert_all_equal_dense(strategies.local_2d_plans(), wanted)


@quick_or_whole(50, 100)
def test_strided_equals_dense_attention(wanted):
    assert_all_equal_dense(strategies.strided_plans(), wanted)


@quick_or_whole(50, 100)
def test_fixed_equals_dense_attention(wanted):
    assert_all_equal_dense(strategies.fixed_plans(), wanted)


@quick_or_whole(60, 200)
def test_nearest_with_shared_queries_and_keys_equals_dense_attention(wanted):
    assert_all_equal_dense(strategies.nearest_plans(shared=True), wanted)


@quick_or_whole(60, 200)
def test_nearest_with_separate_queries_and_keys_equals_dense_attention(wanted):
    assert_all_equal_dense(strategies.nearest_plans(shared=False), wanted)


@quick_or_whole(60, 200)
def test_random_equals_dense_attention(wanted):
    assert_all_equal_dense(strategies.random_plans(), wanted)


@quick_or_whole(100, 200)
def test_top_k_equals_the_mean_of_dense_attentions(wanted):
    assert_all_equal_dense(strategies.top_k_plans(), wanted)


@quick_or_whole(30, 100)
def test_chunks_equal_dense_attention(wanted):
    assert_all_equal_dense(strategies.chunk_plans(), wanted)
