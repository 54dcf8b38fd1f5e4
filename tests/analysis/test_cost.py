"""What attention costs: matrix products as written down by hand, and as XLA counts them."""

import keras
import pytest

from tests.oracle.layers import CASES
from tf_sparse_attention.analysis import cost
from tf_sparse_attention.layers import ClusteredAttention, LocalAttention, MixedAttention, RoutingAttention
from tf_sparse_attention.models import Backbone, LanguageModel

PART = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 64}


def built(layer, size=16):
    layer.build((None, None, size))
    return layer


def test_local_attention_costs_its_projections_and_its_slots():
    layer, length = built(LocalAttention(2, 8, window=64)), 4096
    slots = 32 * (2 + 1)  # blocks of 32 queries beside their own keys and those of two blocks
    projections, pairs = 4 * length * 16 * 16, length * slots * 2 * (8 + 8)
    assert cost(layer, length).num_operations == 2 * (projections + pairs)
    assert cost(layer, 2 * length).num_operations == 2 * cost(layer, length).num_operations
    both = built(MixedAttention([LocalAttention(2, 8, window=64), LocalAttention(2, 8, window=64)]))
    assert cost(both, length).num_operations == 2 * cost(layer, length).num_operations
    half = built(LocalAttention(2, 8, window=64, dtype="bfloat16"))
    assert cost(half, length).num_bytes < 0.75 * cost(layer, length).num_bytes  # float32 scores are as large


def test_a_model_has_a_row_for_each_attention_and_one_for_the_rest():
    model = LanguageModel(Backbone(258, 2, 16, [PART], intermediate_dim=64), tie_embeddings=True)
    found = cost(model, 1024)
    assert [row.kind for row in found.rows] == ["LocalAttention", "LocalAttention", ""]
    assert found.rows[0].num_operations == cost(built(LocalAttention(2, 8, window=64)), 1024).num_operations
    assert found.rows[-1].num_operations == 2 * 1024 * (2 * 2 * 16 * 64 + 16 * 258)  # feed-forward layers and logits
    numbers = 2 * 2 * (1024 * 16 + 16 * 64 + 1024 * 64) + 1024 * 16 + 16 * 258 + 1024 * 258
    assert found.rows[-1].num_bytes == 4 * numbers
    assert found.num_operations == sum(row.num_operations for row in found.rows) and "| all | |" in str(found)
    inputs = keras.Input((None, 16))
    functional = keras.Model(inputs, keras.layers.Dense(4)(LocalAttention(2, 8, window=64)(inputs)))
    found = cost(functional, 1024)
    assert found.rows[-1].num_operations == 2 * 1024 * 16 * 4
    alone = LocalAttention(2, 8, window=64)
    both_sides = cost(built(alone), 1024, causal=False).num_operations
    assert found.rows[0].num_operations == both_sides > cost(alone, 1024).num_operations
    functional = keras.Model(inputs, LocalAttention(2, 8, window=64)(inputs[:, ::2]))
    found = cost(functional, 2048)
    assert [row.num_operations for row in found.rows] == [both_sides, 0]


@pytest.mark.full
def test_jax_counts_the_same_as_tensorflow_and_xla_a_little_more(run_jax):
    code = """
import jax, pytest
from tests.analysis.test_cost import *
from tf_sparse_attention.analysis.products import products
layer = built(RoutingAttention(2, 8, 16, 64, use_successor_values=True, seed=0))
lowered = jax.jit(lambda x: layer(x, use_causal_mask=True)).lower(jax.ShapeDtypeStruct((1, 4096, 16), "float32"))
of_xla, own = lowered.cost_analysis(), cost(layer, 4096)
print(own.num_operations, of_xla["flops"], own.num_bytes, of_xla["bytes accessed"])
loops = [lambda x: jax.lax.scan(lambda y, _: (y @ x, None), x, None, length=3)[0]]
loops.append(lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x))
for loop in loops:
    with pytest.raises(ValueError, match="must not multiply matrices in loops"):
        products(loop, [(4, 4)], ["float32"])
"""
    operations, of_xla, num_bytes, bytes_of_xla = map(float, run_jax(code).split())
    layer = built(RoutingAttention(2, 8, 16, 64, use_successor_values=True, seed=0))
    assert operations == cost(layer, 4096).num_operations
    assert operations <= of_xla < 1.3 * operations  # XLA also counts sums, exponentials and comparisons
    assert num_bytes <= bytes_of_xla  # XLA also counts copies, before operations are fused


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(kind.__name__ for kind in CASES))
def test_every_layer_has_a_cost_that_grows_no_faster_than_its_pattern(name):
    from tests.cases import CASES as LAYERS

    layer = next(case.make() for case in LAYERS.values() if type(case.make()).__name__ == name)
    layer.build((None, None, 8))
    costs = [cost(layer, length).num_operations for length in (256, 512)]
    quadratic = ("StridedAttention", "FixedAttention", "DenseAttention")
    quadratic += ("BlockSelectedAttention", "NativeSparseAttention")  # their choice among blocks, here of few tokens
    assert 1.5 < costs[1] / costs[0] < (4 if name in quadratic else 2.6)


def test_what_cannot_be_counted_is_an_error(subtests):
    inputs, more = keras.Input((None, 16)), keras.Input((None, 16))
    recurrent = keras.layers.LSTM(4)(LocalAttention(2, 8, window=64)(inputs))
    halves = LocalAttention(2, 8, block_size=4, key_block_size=8)(inputs[:, ::2], inputs)
    across = LocalAttention(2, 8, block_size=4, key_block_size=4)(inputs, more)
    clustered = built(ClusteredAttention(2, 8, num_clusters=4, name="clustered"))
    language_model = LanguageModel(Backbone(10, 1, 16, [PART], intermediate_dim=8))
    for message, target, length, options in [
        ("`target`", LocalAttention(2, 8, window=64), 8, {}),
        ("`target`", "local", 8, {}),
        ("`causal`", clustered, 8, {"causal": True}),
        ("`causal`", language_model, 8, {"causal": True}),
        ("must not multiply matrices in loops", keras.Model(inputs, recurrent), 64, {}),
        ("`target`", keras.Model(inputs, halves), 16, {}),
        ("`target`", keras.Model([inputs, more], across), 8, {}),
    ]:
        with subtests.test(message, target=str(target)), pytest.raises(ValueError, match=message):
            cost(target, length, **options)
