"""The sparse attentions equal their dense twins on JAX too, compiled, in a process of its own."""

import pytest

FAMILIES = {"local", "local_2d", "strided", "fixed", "nearest", "separate", "random", "top_k", "chunks"}


def test_sixteen_compiled_programs_equal_dense_attention_200_times_each_family(on_jax):
    assert on_jax["families"].keys() == FAMILIES
    assert min(on_jax["families"].values()) >= 200


@pytest.mark.large
def test_200_programs_of_any_shape_equal_dense_attention(run_jax_worker):
    counts = run_jax_worker("free")
    assert counts.keys() == FAMILIES
    assert sum(counts.values()) >= 200
