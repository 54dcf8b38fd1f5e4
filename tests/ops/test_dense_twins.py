"""Each sparse attention equals dense attention under its pattern's mask, outputs and gradients, whatever is drawn."""

from hypothesis import given, settings

from tests.ops import strategies
from tests.ops.compare import assert_equals_dense


def assert_all_equal_dense(plans):
    """Compares what Hypothesis draws and makes sure that it was at least 200 different configurations."""
    drawn = set()

    @settings(max_examples=230)
    @given(plans, strategies.SEED)
    def compare(plan, seed):
        drawn.add(plan)
        assert_equals_dense(plan, seed)

    compare()
    assert len(drawn) >= 200


def test_local_equals_dense_attention():
    assert_all_equal_dense(strategies.local_plans())


def test_nearest_with_shared_queries_and_keys_equals_dense_attention():
    assert_all_equal_dense(strategies.nearest_plans(shared=True))


def test_nearest_with_separate_queries_and_keys_equals_dense_attention():
    assert_all_equal_dense(strategies.nearest_plans(shared=False))


def test_random_equals_dense_attention():
    assert_all_equal_dense(strategies.random_plans())


def test_top_k_equals_the_mean_of_dense_attentions():
    assert_all_equal_dense(strategies.top_k_plans())
