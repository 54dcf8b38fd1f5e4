"""Divergences of heads are those of their dense weights, exactly and for any pattern."""

import collections
import itertools

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.draws import first
from tests.goldens import goldens_of, read_case
from tf_sparse_attention.analysis.attention_rows import record_attentions
from tf_sparse_attention.analysis.divergence import jensen_shannon

goldens = goldens_of("routing_transformer/misc.npz")

SIZES = {"num_heads": 2, "key_dim": 5, "position": "relative"}
LOCAL = {"layer": "LocalAttention", **SIZES, "window": 6}
ROUTING = {"layer": "RoutingAttention", **SIZES, "num_clusters": 3, "cluster_size": 5}
OTHERS = [
    {"layer": "StridedAttention", "num_heads": 2, "key_dim": 4, "stride": 4},
    {"layer": "FixedAttention", "num_heads": 2, "key_dim": 4, "block_size": 4, "num_summary": 2},
    {"layer": "AllAttention", "num_heads": 2, "key_dim": 4, "num_persistent": 3, "window": 5},
    {"layer": "LSHAttention", "num_heads": 2, "key_dim": 4, "num_buckets": 4, "bucket_size": 4, "num_rounds": 2},
    {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 6, "adaptive_span": {"initial": 0.5}},
]


def model_of(*parts, num_layers=1):
    backbone = tsa.models.Backbone(20, num_layers, 8, list(parts), intermediate_dim=8, seed=1)
    return tsa.models.LanguageModel(backbone)


def ids_of(rows=3, length=23):
    return np.random.default_rng(0).integers(1, 20, (rows, length))


def dense_weights(model, ids):
    """The weights of each layer, (B, N, T, S), as the layers return them."""
    x, found = model.backbone.embedding(ids), []
    for block in model.backbone.blocks:
        found.append(
            np.asarray(block.attention(block._attention_norm(x), use_causal_mask=True, return_attention_scores=True)[1])
        )
        x = block(x)
    return found


@pytest.mark.parametrize("part", first([ROUTING, *OTHERS], 1), ids=lambda part: part["layer"])
def test_weights_by_rows_are_those_the_layers_return(part):
    model, ids = model_of(LOCAL, part), ids_of()
    for attention, expected in zip(record_attentions(model, ids), dense_weights(model, ids), strict=True):
        rows = list(attention.rows())
        np.testing.assert_array_equal(np.concatenate([at for at, _ in rows]), np.arange(23))
        found = np.concatenate([weights for _, weights in rows], axis=2)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_array_equal(found == 0, expected == 0)


def divergence_by_hand(weights, kinds):
    """Return by kinds the mean of each text, over pairs of heads and the queries that both answer."""
    means = collections.defaultdict(list)
    for heads in weights.astype("float64"):
        of_text = collections.defaultdict(list)
        for i, j in itertools.combinations(range(len(kinds)), 2):
            answered = (heads[i].sum(-1) > 0) & (heads[j].sum(-1) > 0)
            a, b = (x[answered] / x[answered].sum(-1, keepdims=True) for x in (heads[i], heads[j]))
            of_text["|".join(sorted((kinds[i], kinds[j])))].append(np.mean(jensen_shannon(a, b)))
        for kind, values in of_text.items():
            means[kind].append(np.mean(values))
    return means


@pytest.mark.parametrize("selection", first(["nearest", "top_k"], 1))
@pytest.mark.filterwarnings("ignore:.*is not causal")
def test_means_and_deviations_are_those_worked_by_hand_and_the_model_is_as_it_was(selection):
    model, ids = model_of(LOCAL, {**ROUTING, "selection": selection}, num_layers=2), ids_of()
    before, weights = np.asarray(model(ids)), [np.asarray(weight) for weight in model.weights]
    result = tsa.analysis.head_divergence(model, ids)
    np.testing.assert_array_equal(model(ids), before)
    for ours, theirs in zip(model.weights, weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert "compute_attention" not in vars(model.backbone.blocks[0].attention.parts[0])
    assert result.num_runs == 3
    assert len(result.rows) == 6
    for layer, weights in enumerate(dense_weights(model, ids)):
        expected = divergence_by_hand(weights, ["local", "local", "routing", "routing"])
        for row in (row for row in result.rows if row.layer == layer):
            assert row.mean == pytest.approx(np.mean(expected[row.kinds]), rel=1e-4)
            assert row.deviation == pytest.approx(np.std(expected[row.kinds]), rel=1e-3, abs=1e-6)
            assert row.num_pairs == {"local|local": 1, "local|routing": 4, "routing|routing": 1}[row.kinds]


def published_relative(p, q, epsilon=1e-5):
    """Return the relative entropy of the published code, which has its epsilon twice."""
    return -np.sum(p * np.log(q / (p + epsilon) + epsilon), axis=-1)


def test_the_published_divergence_is_ours_except_for_its_epsilon(goldens, subtests):
    for name in ("jsd", "jsd_same", "jsd_disjoint"):
        _, arrays = read_case(goldens, name)
        a, b = (arrays[key].astype("float64") for key in "ab")
        a, b = (x / x.sum(axis=-1, keepdims=True) for x in (a, b))
        middle = (a + b) / 2
        found = (published_relative(a, middle) + published_relative(b, middle)) / 2
        with subtests.test(name):
            np.testing.assert_allclose(np.mean(found), arrays["out"], rtol=1e-5, atol=1e-7)
            assert abs(np.mean(jensen_shannon(a, b)) - arrays["out"]) < 2e-4
    _, arrays = read_case(goldens, "kl")
    a, b = (arrays[key].astype("float64") for key in "ab")
    np.testing.assert_allclose(published_relative(a, b), arrays["out"], atol=1e-6)


@pytest.mark.full
def test_padding_and_masks_are_those_of_the_call():
    model = model_of(LOCAL, ROUTING)
    ids, mask = ids_of(2), np.arange(23) < np.array([[23], [15]])
    padded = tsa.analysis.head_divergence(model, {"token_ids": ids[1:], "padding_mask": mask[1:]})
    short = tsa.analysis.head_divergence(model, ids[1:, :15])
    for ours, theirs in zip(padded.rows, short.rows, strict=True):
        assert ours.mean == pytest.approx(theirs.mean, abs=1e-6)


@pytest.mark.full
def test_some_queries_are_spread_evenly():
    model, ids = model_of(LOCAL, ROUTING), ids_of()
    (attention,) = record_attentions(model, ids)
    assert [at.tolist() for at, _ in attention.rows([0, 7, 15])] == [[0, 7, 15]]
    few, all_of_them = (tsa.analysis.head_divergence(model, ids, max_queries=count) for count in (5, 1000))
    assert few.rows[0].mean != all_of_them.rows[0].mean
    assert all_of_them.rows == tsa.analysis.head_divergence(model, ids).rows


@pytest.mark.full
def test_the_table_and_the_drawing_show_each_two_kinds():
    pytest.importorskip("matplotlib").use("Agg")
    result = tsa.analysis.head_divergence(model_of([LOCAL], [ROUTING, LOCAL], num_layers=2), ids_of())
    kinds, figure = ["local|local", "local|routing", "routing|routing"], result.draw()
    assert r"| layer | local\|local | local\|routing | routing\|routing |" in result.table()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == kinds
    assert result.draw(axes=figure.axes[0]) is figure


@pytest.mark.full
def test_models_without_pairs_of_heads_with_own_keys_are_refused(subtests):
    plain = keras.Sequential([keras.layers.Embedding(20, 4)])
    for message, model in [
        ("a layer with at least two heads", model_of({**LOCAL, "num_heads": 1})),
        ("must have attention layers of this library", plain),
        ("keys and values for each head", model_of({**OTHERS[2], "variant": "head_split"})),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            tsa.analysis.head_divergence(model, ids_of())


def test_memory_grows_with_the_length_and_not_its_square():
    import tracemalloc

    model = model_of({**LOCAL, "position": None}, ROUTING)
    peaks = []
    for length in (256, 1024):
        tracemalloc.start()
        tsa.analysis.head_divergence(model, ids_of(1, length), max_queries=5)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 8 * peaks[0]
