"""The report on clusters and spans counts what there is, and says what to do."""

import keras
import numpy as np
import pytest

from tests.contracts import normal
from tests.draws import first
from tf_sparse_attention import layers
from tf_sparse_attention.analysis import health
from tf_sparse_attention.analysis.health import RoutedHead, Spans
from tf_sparse_attention.analysis.health_advice import advise
from tf_sparse_attention.patterns import Heads, Nearest, Successors, Window

SIZE = 12


def routing(**arguments):
    layer = layers.RoutingAttention(2, 8, num_clusters=4, cluster_size=8, seed=0, **arguments)
    layer.build((None, None, SIZE))
    return layer


def masked(layer):
    """Return a causal model of vectors and their padding mask."""
    inputs = keras.Input((None, SIZE)), keras.Input((None,), dtype="bool")
    return keras.Model(inputs, layer(inputs[0], query_mask=inputs[1], use_causal_mask=True))


@pytest.mark.parametrize(
    ("arguments", "least", "most"),
    [
        ({"selection": "top_k"}, 0.1, 0.6),
        ({"selection": "top_k", "position": "relative"}, 0.1, 0.6),
        ({"selection": "nearest"}, 0, 0),
        ({"selection": "nearest", "share_qk": False}, 0, 0.2),  # of keys, a cluster may have none
        ({"selection": "top_keys", "share_qk": False}, 0, 0),
    ],
)
def test_what_is_dropped_is_what_the_dense_twin_shows_empty(arguments, least, most):
    layer, x = routing(**arguments), normal(3, 32, SIZE)
    report = health(layer, x)
    empty = ~keras.ops.convert_to_numpy(layer.attention_pattern(x)).any(axis=-1)  # (B, N, T)
    assert least <= empty.mean() <= most
    np.testing.assert_allclose([head.dropped for head in report.heads], empty.mean(axis=(0, 2)))
    drops = arguments["selection"] == "top_k"
    assert any('selection="nearest" drops no tokens' in line for line in report.advice) == drops


@pytest.mark.parametrize("arguments", first([{"share_qk": False, "num_key_value_heads": 1}, {}], 1))
def test_clusters_are_counted_by_row_and_without_padding(arguments):
    layer, x = routing(selection="nearest", **arguments), normal(2, 20, SIZE)
    mask = np.arange(20) < np.array([[20], [11]])

    report = health(masked(layer), (x, mask))
    assert [head.head for head in report.heads] == [0, 1]
    sides = [side for side in layer.project(x)[:2] if side is not None]
    centroids = keras.ops.convert_to_numpy(layer.centroids)
    for head, found in enumerate(report.heads):
        rows = []
        for side in sides:
            nearest = (keras.ops.convert_to_numpy(side) @ centroids.swapaxes(1, 2)).argmax(-1)
            own = head * nearest.shape[1] // 2
            rows += [np.bincount(nearest[row, own][mask[row]], minlength=4) for row in range(2)]
        rows = np.array(rows)
        shares = rows.sum(0) / rows.sum()
        np.testing.assert_allclose(found.shares, shares)  # in the order of the clusters
        assert found.dead == (shares == 0).sum() and (found.num_clusters, found.cluster_size) == (4, 8)
        assert found.overfull == pytest.approx(rows[rows > 8].sum() / rows.sum())
        assert found.entropy == pytest.approx(-sum(x * np.log(x) for x in shares if x) / np.log(4))


def test_equal_tokens_are_all_in_one_cluster():
    report = health(routing(selection="nearest"), np.ones((1, 32, SIZE), "float32"))
    for head in report.heads:
        assert (head.dead, head.entropy, head.overfull) == (3, 0, 1)
    assert len(report.advice) == 2 and "75% of the clusters have no tokens" in report.advice[0]
    assert "100% of the tokens are in clusters with more than `cluster_size`=8" in report.advice[1]


def test_drift_is_measured_from_an_earlier_report():
    layer, x = routing(selection="nearest"), normal(2, 32, SIZE)
    first = health(layer, x)
    assert all(head.drift is None for head in first.heads)
    assert [head.drift for head in health(layer, x, first).heads] == [0, 0]
    layer.centroids.assign(layer.centroids + np.array([0.0, 1.0])[:, None, None])
    assert [head.drift for head in health(layer, x, first).heads] == pytest.approx([0, 1], abs=1e-6)


@pytest.mark.full
def test_layers_of_several_parts_have_a_row_for_each_routed_head():
    x = normal(1, 32, SIZE)
    parts = [layers.LocalAttention(2, 4, window=4), layers.RoutingAttention(1, 4, num_clusters=2, cluster_size=8)]
    assert [(each.head, each.num_clusters) for each in health(layers.MixedAttention(parts), x).heads] == [(0, 2)]
    union = layers.SparseAttention(2, 4, Window(4) | Nearest(3, 8), seed=0)
    assert [(each.head, each.num_clusters) for each in health(union, x).heads] == [(0, 3), (1, 3)]
    following = layers.SparseAttention(2, 4, Window(4) | Successors(Nearest(3, 8)), seed=0)
    model = keras.Sequential(
        [keras.Input((32, SIZE)), layers.TransformerBlock(following, layers.FeedForward(8), causal=True)]
    )
    assert [(each.reads_successors, each.dropped) for each in health(model, x).heads] == [(True, 0.0)] * 2
    beside = layers.SparseAttention(3, 4, Heads([(1, Window(4)), (2, Nearest(5, 8))]), seed=0)
    assert [(each.head, each.num_clusters) for each in health(beside, x).heads] == [(1, 5), (2, 5)]


def head(**changes):
    given = {"selection": "nearest", "num_clusters": 8, "cluster_size": 16, "dead": 0, "entropy": 0.9, "overfull": 0.1}
    return RoutedHead(**{"layer": "routed", "head": 0, "dropped": 0.0, "drift": None, **given, **changes})


@pytest.mark.parametrize(
    ("heads", "spans", "said"),
    [
        ([head()], [], None),
        ([head(dropped=0.25)], [], "tokens attend to nothing, averaged over heads: they are masked."),
        ([head(dropped=0.25, selection="top_k")], [], 'averaged over heads: selection="nearest" drops no tokens.'),
        ([head(dropped=0.05, reads_successors=True)], [], None),
        ([head(dropped=0.2, reads_successors=True)], [], "20.0% of tokens attend to nothing, averaged over heads"),
        ([head(dead=4), head()], [], "25% of the clusters have no tokens: reduce"),
        ([head(dead=4, entropy=0.3)], [], "50% of the clusters have no tokens"),  # which says it all
        ([head(), head(entropy=0.55)], [], "few clusters have most tokens (entropy 0.55): use"),
        ([head(overfull=0.8)], [], "80% of the tokens are in clusters with more than `cluster_size`=16"),
        ([], [Spans("local", 100, (96, 98))], "every span reaches the `window` of 100"),
        ([], [Spans("local", 100, (60, 98))], None),
        ([], [Spans("local", 100, (3, 50))], "the longest span is 50 of 100 positions"),
    ],
)
def test_advice_is_given_for_a_fault_and_for_no_other(heads, spans, said):
    advice = advise(heads, spans)
    assert len(advice) == (said is not None)
    assert not advice or said in advice[0]


def test_spans_are_listed_with_advice():
    for initial, said in ((1.0, "every span reaches the `window` of 64"), (0.7, "No problems found.")):
        layer = layers.LocalAttention(2, 4, window=64, adaptive_span={"ramp": 4, "initial": initial})
        report = health(layer, normal(1, 16, SIZE))
        assert report.spans[0].window == 64 and len(report.spans[0].spans) == 2
        assert said in str(report) and bool(report.advice) == (initial == 1.0)


def test_attention_without_routed_heads_is_passed_over():
    inputs = keras.Input((None, SIZE))
    model = keras.Model(inputs, layers.ClusteredAttention(2, 4, num_clusters=3)(routing()(inputs)))
    assert len(health(model, normal(1, 9, SIZE)).heads) == 2


def test_padding_that_sees_nothing_is_not_counted_as_dropped():
    layer, x = routing(selection="nearest"), normal(2, 20, SIZE)
    mask = np.arange(20) < np.array([[20], [11]])
    assert [each.dropped for each in health(masked(layer), (x, mask)).heads] == [0, 0]
    with pytest.raises(ValueError, match="`batch`"):
        health(masked(layer), (x, mask & False))


def test_a_wrong_argument_is_an_error(subtests):
    cases = [
        ({"batch": "text"}, "`batch`"),
        ({"batch": None}, "`batch`"),
        ({"batch": (normal(1, 4, SIZE),) * 2}, "`batch`"),
        ({"previous": "report"}, "`previous`"),
        ({"model": layers.LocalAttention(2, 4, window=4, name="near")}, "`model`"),
        ({"model": keras.Sequential([keras.Input((4, SIZE)), keras.layers.Dense(2)])}, "`model`"),
    ]
    layer, x = routing(), normal(1, 9, SIZE)
    path, report = layer.centroids.path, health(layer, x)
    report.centroids[path] = report.centroids[path][:, :2]
    cases.append(({"model": layer, "batch": x, "previous": report}, "`previous`"))  # of another model
    for change, message in cases:
        with subtests.test(str(change)), pytest.raises(ValueError, match=message):
            health(**{"model": routing(), "batch": normal(1, 4, SIZE), **change})


def test_a_layer_with_successor_values_is_called_with_a_causal_mask():
    layer, x = layers.MixedAttention([routing(use_successor_values=True)]), normal(1, 32, SIZE)
    empty = ~keras.ops.convert_to_numpy(layer.attention_pattern(x, use_causal_mask=True)).any(axis=-1)
    np.testing.assert_allclose([head.dropped for head in health(layer, x).heads], empty.mean(axis=(0, 2)))
