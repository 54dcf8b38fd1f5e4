"""Heads to begin with: their sizes by the rule, what they cost, and that a model can be made of them."""

import pytest

from tests.draws import first
from tf_sparse_attention.analysis import cost, suggest
from tf_sparse_attention.layers import LocalAttention
from tf_sparse_attention.models import Backbone, LanguageModel


@pytest.mark.full
@pytest.mark.parametrize(
    ("length", "window", "clusters"),
    first([(100, 64, 2), (1, 1, 1), (1024, 64, 16), (50, 50, 1), (2048, 128, 16), (8192, 256, 32)], 1),
)
def test_windows_and_clusters_grow_with_the_root_of_the_length(length, window, clusters):
    found = suggest(length, num_heads=5, key_dim=8)
    local, routed = found.attention
    assert (local["num_heads"], routed["num_heads"]) == (1, 4)
    size = min(2 * window, length)
    assert (local["window"], routed["cluster_size"], routed["num_clusters"]) == (window, size, clusters)
    first = found.choices[0]
    assert (first.window, first.cluster_size, first.num_clusters) == (window, size, clusters)
    assert all(each.window in (window, window // 2, size, 1) for each in found.choices)
    assert all(each.window <= length for each in found.choices)
    assert all(abs(length - each.num_clusters * each.window) <= each.window / 2 for each in found.choices)
    local, routed = suggest(length, num_heads=5, key_dim=8, causal=False).attention
    assert (local["num_heads"], routed["num_heads"], routed["cluster_size"]) == (3, 2, window)


def attention_operations(parts, causal):
    """Return the operations of the attention of a model of one layer at 2,048 tokens."""
    model = LanguageModel(Backbone(100, 1, 48, parts, intermediate_dim=8, causal=causal))
    return sum(row.num_operations for row in cost(model, 2048).rows if row.kind)


@pytest.mark.full
def test_the_costs_are_those_of_the_layers():
    found = suggest(2048, num_heads=4, key_dim=16, hidden_dim=48)
    dense = LocalAttention(4, 16, block_size=2048)
    dense.build((None, None, 48))
    assert found.choices[0].num_operations == attention_operations(found.attention, causal=True)
    assert cost(dense, 2048).num_operations == 2 * 2048 * (4 * 48 * 64 + 2 * 2048 * 64)
    assert found.choices[0].share_of_dense == found.choices[0].num_operations / cost(dense, 2048).num_operations < 0.25
    both_sides = suggest(2048, num_heads=4, key_dim=16, hidden_dim=48, causal=False)
    own, less = (attention_operations(both_sides.attention, causal) for causal in (False, True))
    assert both_sides.choices[0].num_operations == own > less and "use_successor_values" not in str(both_sides)
    smaller, larger = found.choices[1:]
    assert smaller.num_operations < found.choices[0].num_operations < larger.num_operations
    assert "---|\n| proposed | 128 | 256 | 16 | " in str(found) and "use_successor_values" in str(found)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 2), "sequence_length"), ((8, 1), "num_heads"), ((8, 2, 0), "key_dim"), ((8, 2, 4, None, 1), "causal")],
)
def test_a_wrong_argument_is_named(arguments, name):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        suggest(*arguments)
