"""The causality audit finds every kind of look ahead, and nothing where there is none."""

import importlib.util

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.analysis.causality.audited_layers import CAUSAL, LOOKING_AHEAD, Ahead, attention, language_model
from tests.draws import first
from tf_sparse_attention.analysis import CausalityError, assert_causal, causality_report
from tf_sparse_attention.layers import BlockSelectedAttention, NativeSparseAttention, RoutingAttention


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_target_passes(name):
    options = {"sequence_length": 12, "hidden_dim": 6, "num_cuts": 4}
    report, quick = (assert_causal(CAUSAL[name](), **options, quick=quick) for quick in (False, True))
    assert report.is_causal and quick.is_causal
    assert report.max_gradient == 0 and report.max_change == 0 and quick.max_gradient is None
    assert quick.checks == (("perturbation",) if name == "fixed_length" else ("perturbation", "prefix"))


@pytest.mark.parametrize("name", LOOKING_AHEAD)
def test_a_look_ahead_fails(name):
    target, options = LOOKING_AHEAD[name](), {"sequence_length": 12, "hidden_dim": 6, "num_cuts": 4}
    with pytest.raises(CausalityError, match="`target`"):
        assert_causal(target, **options)
    assert "prefix" in [leak.check for leak in causality_report(target, **options, quick=True).leaks]


def test_a_leak_over_a_long_distance_needs_a_long_sequence():
    assert_causal(Ahead(distance=200), sequence_length=64)
    with pytest.raises(CausalityError):
        assert_causal(Ahead(distance=200), sequence_length=256)


def test_both_checks_name_the_first_position_that_looks_ahead():
    def target(x):
        here = ops.cast(ops.arange(12) == 5, x.dtype)[:, None]
        return x + here * ops.roll(x, -1, axis=1)

    report = causality_report(target, sequence_length=12, num_cuts=11)
    assert [(leak.check, leak.cut, leak.position) for leak in report.leaks] == [
        ("gradient", 6, 5),
        ("perturbation", 6, 5),
    ]


def test_the_layer_that_looks_ahead_is_named():
    model = language_model(attention(name="good"), attention(causal=False, name="bad"), attention(name="after"))
    with pytest.raises(CausalityError, match="in layer 'bad'") as caught:
        assert_causal(model, sequence_length=8, num_cuts=3)
    assert [leak.layer for leak in caught.value.report.leaks] == ["bad", "bad"]


def test_a_mix_outside_all_layers_is_laid_to_the_model_itself():
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(11, 8)(ids)
    model = keras.Model(ids, layers.Dense(3)(ops.flip(x, axis=1)), name="flipped")
    assert causality_report(model, sequence_length=12).leaks[0].layer == "flipped"


def test_outputs_that_do_not_depend_on_inputs_prove_nothing():
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layers.Dense(3, kernel_initializer="zeros")(layers.Embedding(11, 4)(ids)))
    with pytest.raises(ValueError, match=r"depend on its inputs.*in the checks \('gradient', 'perturbation'\)"):
        assert_causal(model)
    report = causality_report(model)
    assert not report.leaks and not report.is_causal


def test_nan_that_a_later_input_brings_is_a_leak():
    inputs = np.ones((1, 4, 2), "float32")
    with pytest.raises(CausalityError, match="with a change of inf of its scale"):
        assert_causal(lambda x: x + 0 * ops.log(ops.min(x)), inputs=inputs, gradients=False)


def test_infinite_logits_that_stay_are_no_change():
    forbidden = np.array([0, -np.inf, 0], "float32")
    assert assert_causal(lambda x: x + forbidden, hidden_dim=3).max_change == 0


def test_what_proves_nothing_is_refused(subtests):
    shapes = r"must return outputs of shape \(batch_size, sequence_length, ...\)"
    for kind, target, message in [
        ("NaN outputs", lambda x: x * np.nan, "`target`"),
        ("infinite gradients", lambda x: ops.sqrt(ops.relu(x) * 0), "`target`"),
        ("no positions", lambda x: ops.zeros((2, 3)), shapes),
        ("other positions", lambda x: ops.zeros((2, 5, 3)), shapes),
    ]:
        with subtests.test(kind), pytest.raises(ValueError, match=message):
            assert_causal(target, sequence_length=8)


def test_a_built_layer_sets_the_size_of_its_vectors():
    layer = layers.MultiHeadAttention(2, 4)
    layer.build((None, None, 48), (None, None, 48))
    assert_causal(layer, sequence_length=6)


def test_inputs_of_the_user_are_audited_with_their_padding():
    ids = np.array([[3, 4, 5, 6, 7, 0, 0, 0], [3, 4, 5, 6, 7, 8, 9, 0]])
    model = language_model(attention(), mask_zero=True)
    # Keras attends to everything, the future too, from a padded position, where nothing is allowed.
    assert [leak.position for leak in causality_report(model, inputs=ids, num_cuts=7).leaks] == [5, 5]
    assert_causal(lambda ids: model(ids) * ops.cast(ids != 0, "float32")[..., None], inputs=ids, num_cuts=3)


def test_integer_outputs_are_compared_and_not_differentiated():
    model = language_model(attention())

    def target(ids):
        return {"logits": model(ids), "best": ops.argmax(model(ids), axis=-1)}

    assert_causal(target, inputs=np.arange(8)[None])


def test_half_precision_has_a_wider_tolerance_and_float32_is_on_request():
    model = keras.Sequential([layers.Conv1D(4, 3, padding="causal", dtype="mixed_bfloat16"), layers.Dense(3)])
    assert assert_causal(model, sequence_length=12).atol == 0.0625
    assert assert_causal(model, sequence_length=12, dtype="float32").atol == 1e-5


def test_cuts_are_all_positions_on_request_and_few_otherwise():
    layer = layers.Dense(3)
    assert causality_report(layer, sequence_length=6, num_cuts=5).cuts == (1, 2, 3, 4, 5)
    cuts = causality_report(layer, sequence_length=1000, num_cuts=6).cuts
    assert len(set(cuts)) == 6 and cuts[0] == 1 and cuts[-1] == 999 and list(cuts) == sorted(cuts)


def test_one_seed_gives_one_report():
    layer, options = Ahead(), {"sequence_length": 8, "num_cuts": 2}
    assert causality_report(layer, seed=4, **options) == causality_report(layer, seed=4, **options)
    assert causality_report(layer, seed=4, **options) != causality_report(layer, seed=5, **options)


def test_a_target_without_gradients_is_compared_alone():
    def target(ids):
        return ops.one_hot(ids, 5)

    ids = np.arange(4)[None]
    with pytest.raises(ValueError, match="`target`"):
        assert_causal(target, inputs=ids)
    assert assert_causal(target, inputs=ids, gradients=False).max_gradient is None


VERDICTS = """
from tests.analysis.causality.audited_layers import *
from tf_sparse_attention.analysis import causality_report

keras.utils.set_random_seed(0)

def audit(target, **options):
    return causality_report(target, sequence_length=6, hidden_dim=4, num_cuts=3, **options)

for quick in (False, True):
    assert audit(language_model(attention()), quick=quick).is_causal
    report = audit(language_model(attention(causal=False, name="bad")), quick=quick)
    assert {leak.layer for leak in report.leaks} == {"bad"} and report.leaks[0].heads == (0, 1), report
report = audit(language_model(attention(), BestTokens(2, name="best")))
assert report.max_gradient == 0 and [leak.layer for leak in report.leaks] == ["best"], report
tracker = keras.Sequential([Tracker(), Ahead(strength=1e-8)])
assert [leak.check for leak in audit(tracker, training=True).leaks] == ["gradient"]
assert int(tracker.layers[0].calls) == 0
"""


@pytest.mark.full
def test_verdicts_are_the_same_on_jax(run_jax):
    run_jax(VERDICTS)
    with pytest.raises(RuntimeError, match=r"JAX needs `jax_enable_x64`. Received: dtype='float64'\."):
        run_jax(VERDICTS + "audit(layers.Dense(3), dtype='float64')")


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch, which is not installed")
def test_verdicts_are_the_same_on_torch(run_python):
    run_python(VERDICTS, KERAS_BACKEND="torch")


@pytest.mark.full
def test_a_backend_without_gradients_is_refused(run_python):
    code = (
        "import keras, pytest, tf_sparse_attention as tsa\n"
        "with pytest.raises(ValueError, match=r\"the TensorFlow, JAX or torch backend.*Received: backend='numpy'\"):\n"
        "    tsa.analysis.assert_causal(keras.layers.Dense(3))"
    )
    run_python(code, KERAS_BACKEND="numpy")


def test_an_argument_out_of_range_is_refused(subtests):
    values = {"sequence_length": 1, "hidden_dim": 0, "batch_size": 1.5, "num_cuts": 0, "num_draws": 0}
    values |= {"vocabulary_size": 1, "atol": -1e-3, "dtype": "bfloat16"}
    for name, value in [*values.items(), ("atol", np.nan)]:
        message = f"`{name}` must be .* Received: {name}={value!r}"
        with subtests.test(message), pytest.raises(ValueError, match=message):
            assert_causal(layers.Dense(3), **{name: value})


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "least"),
    first(
        [
            # A block is left out first at position 12.
            (lambda: BlockSelectedAttention(1, 4, block_size=4, num_blocks=3), 13),
            (lambda: RoutingAttention(1, 4, num_clusters=2, cluster_size=10), 11),
            (lambda: NativeSparseAttention(1, 4, block_size=4, num_blocks=3, window=2), 13),
            (lambda: NativeSparseAttention(1, 4, block_size=2, num_blocks=2, window=9), 10),
        ],
        1,
    ),
)
def test_a_sequence_that_a_layer_sees_all_of_is_said_to_be_too_short(make, least):
    expected = rf"should be at least {least}: .* sees every .* Received: {least - 1} positions"
    with pytest.warns(UserWarning, match=expected):
        causality_report(make(), sequence_length=least - 1, hidden_dim=4, num_cuts=1)
    causality_report(make(), sequence_length=least, hidden_dim=4, num_cuts=1)
