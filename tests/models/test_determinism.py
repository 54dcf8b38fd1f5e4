"""Two trainings with the same seed end with the same bits, on both backends."""

from tests.models.determinism import train


def test_equal_seeds_give_equal_bits():
    assert train() == train()


def test_equal_seeds_give_equal_bits_on_jax(run_jax):
    run_jax("from tests.models.determinism import train\nassert train() == train()")
