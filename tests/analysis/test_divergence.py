"""Divergences of heads are those of their dense weights, exactly and for any pattern."""

import itertools

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.draws import first
from tests.goldens import goldens_of, read_case
from tf_sparse_attention.analysis.attention_rows import record_attentions
from tf_sparse_attention.analysis.divergence import jensen_shannon
from tf_sparse_attention.layers import GlobalLocalAttention

goldens = goldens_of("routing_transformer/misc.npz")

LOCAL = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 5, "window": 6, "position": "relative"}
ROUTING = {
    "layer": "RoutingAttention",
    "num_heads": 2,
    "key_dim": 5,
    "num_clusters": 3,
    "cluster_size": 5,
    "position": "relative",
}
OTHERS = [
    {"layer": "StridedAttention", "num_heads": 2, "key_dim": 4, "stride": 4},
    {"layer": "FixedAttention", "num_heads": 2, "key_dim": 4, "block_size": 4, "num_summary": 2},
    {"layer": "AllAttention", "num_heads": 2, "key_dim": 4, "num_persistent": 3, "window": 5},
    {"layer": "LSHAttention", "num_heads": 2, "key_dim": 4, "num_buckets": 4, "bucket_size": 4, "num_rounds": 2},
    {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 6, "adaptive_span": {"initial": 0.5}},
]


def model_of(*parts, num_layers=2, **arguments):
    arguments = {"intermediate_dim": 8, "seed": 1, **arguments}
    return tsa.models.LanguageModel(tsa.models.Backbone(20, num_layers, 8, list(parts), **arguments))


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


@pytest.mark.parametrize("part", first([ROUTING, *OTHERS], 3), ids=lambda part: part["layer"])
def test_weights_by_rows_are_those_the_layers_return(part):
    model, ids = model_of(LOCAL, part, num_layers=1), ids_of()
    for attention, expected in zip(record_attentions(model, ids), dense_weights(model, ids), strict=True):
        rows = list(attention.rows())
        np.testing.assert_array_equal(np.concatenate([at for at, _ in rows]), np.arange(23))
        found = np.concatenate([weights for _, weights in rows], axis=2)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_array_equal(found == 0, expected == 0)


def divergence_by_hand(weights, kinds):
    """Means over pairs and queries for each text, by kinds, the slow way."""
    found = {}
    for run, heads in enumerate(weights.astype("float64")):
        for i, j in itertools.combinations(range(len(kinds)), 2):
            for a, b in zip(heads[i], heads[j], strict=True):
                if a.sum() == 0 or b.sum() == 0:
                    continue
                a, b = a / a.sum(), b / b.sum()
                m = (a + b) / 2
                terms = [x * np.log(x / y) for p in (a, b) for x, y in zip(p, m, strict=True) if x > 0]
                found.setdefault("|".join(sorted((kinds[i], kinds[j]))), {}).setdefault((run, i, j), []).append(
                    sum(terms) / 2
                )
    means = {}
    for kind, pairs in found.items():
        runs = sorted({run for run, _, _ in pairs})
        means[kind] = [
            np.mean([np.mean(values) for (run, *_), values in pairs.items() if run == other]) for other in runs
        ]
    return means


@pytest.mark.parametrize("selection", ["nearest", "top_k"])
@pytest.mark.filterwarnings("ignore:.*is not causal")
def test_means_and_deviations_are_those_worked_by_hand(selection):
    model, ids = model_of(LOCAL, {**ROUTING, "selection": selection}), ids_of()
    result = tsa.analysis.head_divergence(model, ids)
    assert result.num_runs == 3
    assert len(result.rows) == 6
    for layer, weights in enumerate(dense_weights(model, ids)):
        expected = divergence_by_hand(weights, ["local", "local", "routing", "routing"])
        for row in (row for row in result.rows if row.layer == layer):
            assert row.mean == pytest.approx(np.mean(expected[row.kinds]), rel=1e-4)
            assert row.deviation == pytest.approx(np.std(expected[row.kinds]), rel=1e-3, abs=1e-6)
            assert row.num_pairs == {"local|local": 1, "local|routing": 4, "routing|routing": 1}[row.kinds]


def test_equal_heads_have_exactly_none_and_heads_apart_the_most():
    a = np.array([[0.5, 0.5, 0, 0], [1, 0, 0, 0]])
    assert jensen_shannon(a, a).tolist() == [0, 0]
    np.testing.assert_allclose(jensen_shannon(a, a[:, ::-1]), np.log(2), rtol=1e-15)


@pytest.mark.parametrize("name", ["jsd", "jsd_same", "jsd_disjoint"])
def test_the_published_divergence_is_ours_but_for_its_epsilon(name, goldens):
    _, arrays = read_case(goldens, name)
    a, b = (arrays[key].astype("float64") for key in "ab")
    a, b = (x / x.sum(axis=-1, keepdims=True) for x in (a, b))
    middle = (a + b) / 2
    found = (published_relative(a, middle) + published_relative(b, middle)) / 2
    np.testing.assert_allclose(np.mean(found), arrays["out"], rtol=1e-5, atol=1e-7)
    assert abs(np.mean(jensen_shannon(a, b)) - arrays["out"]) < 2e-4


def published_relative(p, q, epsilon=1e-5):
    return -np.sum(p * np.log(q / (p + epsilon) + epsilon), axis=-1)


def test_the_relative_entropy_of_the_published_code_has_its_epsilon_twice(goldens):
    _, arrays = read_case(goldens, "kl")
    a, b = (arrays[key].astype("float64") for key in "ab")
    np.testing.assert_allclose(published_relative(a, b), arrays["out"], atol=1e-6)


def test_padding_and_masks_are_those_of_the_call():
    model = model_of(LOCAL, ROUTING)
    ids, mask = ids_of(2), np.arange(23) < np.array([[23], [15]])
    padded = tsa.analysis.head_divergence(model, {"token_ids": ids[1:], "padding_mask": mask[1:]})
    short = tsa.analysis.head_divergence(model, ids[1:, :15])
    for ours, theirs in zip(padded.rows, short.rows, strict=True):
        assert ours.mean == pytest.approx(theirs.mean, abs=1e-6)


def test_some_queries_are_spread_evenly():
    model, ids = model_of(LOCAL, ROUTING), ids_of()
    (attention, _) = record_attentions(model, ids)
    assert [at.tolist() for at, _ in attention.rows([0, 7, 15])] == [[0, 7, 15]]
    few, all_of_them = (tsa.analysis.head_divergence(model, ids, max_queries=count) for count in (5, 1000))
    assert few.rows[0].mean != all_of_them.rows[0].mean
    assert all_of_them.rows == tsa.analysis.head_divergence(model, ids).rows


def test_the_table_has_a_row_a_layer_and_is_what_print_shows(capsys):
    result = tsa.analysis.head_divergence(model_of([LOCAL], [ROUTING, LOCAL]), ids_of())
    lines = result.table().splitlines()
    assert lines[0] == r"| layer | local\|local | local\|routing | routing\|routing |"
    assert lines[2].endswith("| - | - |")
    print(result)
    assert capsys.readouterr().out == result.table() + "\n"


def test_the_drawing_has_a_line_for_each_two_kinds():
    pytest.importorskip("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    result = tsa.analysis.head_divergence(model_of(LOCAL, ROUTING), ids_of())
    figure = result.draw()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "local|local",
        "local|routing",
        "routing|routing",
    ]
    assert result.draw(axes=figure.axes[0]) is figure


def test_the_model_is_as_it_was():
    model, ids = model_of(LOCAL, ROUTING), ids_of()
    before, weights = np.asarray(model(ids)), [np.asarray(weight) for weight in model.weights]
    tsa.analysis.head_divergence(model, ids)
    np.testing.assert_array_equal(model(ids), before)
    for ours, theirs in zip(model.weights, weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert "compute_attention" not in vars(model.backbone.blocks[0].attention.parts[0])


def test_one_head_a_layer_has_nothing_to_be_compared_with():
    with pytest.raises(ValueError, match="a layer with at least two heads"):
        tsa.analysis.head_divergence(model_of({**LOCAL, "num_heads": 1}), ids_of())


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ValueError, match="must have attention layers of this library"):
        tsa.analysis.head_divergence(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), np.zeros((1, 4)))


def test_global_tokens_with_projections_of_their_own_have_their_rows():
    layer = GlobalLocalAttention(2, 4, window=3, num_first_global=1, own_projections=True)
    x = np.random.default_rng(0).normal(size=(2, 9, 8)).astype("float32")
    _, weights = layer(x, return_attention_scores=True)
    (attention,) = record_attentions(layer, x)
    found = np.concatenate([rows for _, rows in attention.rows()], axis=2)
    np.testing.assert_allclose(found, weights, atol=1e-6)


def test_heads_that_share_their_keys_are_refused():
    part = {**OTHERS[2], "variant": "head_split"}
    with pytest.raises(ValueError, match="keys and values for each head"):
        tsa.analysis.head_divergence(model_of(part), ids_of())


def test_memory_grows_with_the_length_and_not_its_square():
    import tracemalloc

    model = model_of({**LOCAL, "position": None}, ROUTING)
    peaks = []
    for length in (512, 2048):
        tracemalloc.start()
        tsa.analysis.head_divergence(model, ids_of(1, length), max_queries=5)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 8 * peaks[0]


def drawn_table():
    """The table of a model whose weights NumPy draws, so that they are the same on every backend."""
    model, numbers = model_of(LOCAL, ROUTING), np.random.default_rng(3)
    drawn = [numbers.normal(size=weight.shape) * 0.3 for weight in model.weights]
    pairs = zip(drawn, model.weights, strict=True)
    model.set_weights([new if "float" in weight.dtype else weight for new, weight in pairs])
    return str(tsa.analysis.head_divergence(model, ids_of()))


@pytest.mark.full
def test_jax_gives_the_same_table(run_jax):
    code = "from tests.analysis.test_divergence import drawn_table; print(drawn_table())"
    assert run_jax(code).strip() == drawn_table()
