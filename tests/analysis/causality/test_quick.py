"""The quick audit: forward passes alone, of the whole and of its prefixes."""

import json

import numpy as np
import pytest
from keras import layers, ops

from tests.analysis.causality.audited_layers import Ahead, attention, language_model
from tests.draws import first
from tf_sparse_attention.analysis import CausalityError, assert_causal, causality_report
from tf_sparse_attention.layers import LocalAttention, MixedAttention


def test_what_depends_on_the_length_alone_fails_only_the_prefix_check():
    def target(x):
        return x / x.shape[1]

    assert_causal(target)
    assert [leak.check for leak in causality_report(target, quick=True).leaks] == ["prefix"]


@pytest.mark.parametrize("options", [{}, {"quick": True}])
def test_the_distance_of_a_look_ahead_is_measured(options):
    report = causality_report(Ahead(distance=5), sequence_length=12, num_cuts=11, **options)
    assert {leak.distance for leak in report.leaks} == {5}
    assert "up to 5 positions later" in str(report.leaks[0])


def half_ahead(layer):
    """A layer whose heads see the future where a mask of (1, N, T, T) lets them: the last one, of two, here."""

    def call(x):
        length = x.shape[1]
        past = np.tril(np.ones((length, length), bool))
        mask = np.stack([past, np.ones_like(past)])[None]
        return layer(x, x, attention_mask=np.repeat(mask, x.shape[0], axis=0))

    return call


@pytest.mark.parametrize(
    ("make", "options"),
    first(
        [
            (lambda: LocalAttention(2, 4, window=7, name="it"), {"quick": True}),
            (lambda: layers.GroupQueryAttention(4, 2, 1, name="it"), {}),
            (lambda: layers.MultiHeadAttention(2, 4, name="it"), {}),
        ],
        2,
    ),
)
def test_the_head_that_looks_ahead_is_named(make, options):
    layer = make()
    report = causality_report(half_ahead(layer), sequence_length=9, hidden_dim=8, num_cuts=3, **options)
    assert {(leak.layer.rpartition("/")[-1], leak.heads) for leak in report.leaks} == {("it", (1,))}
    assert ", heads 1" in str(report.leaks[0])


@pytest.mark.full
def test_the_part_of_a_mixed_layer_is_named():
    layer = MixedAttention([LocalAttention(1, 4, window=3, name="near"), LocalAttention(2, 4, window=5, name="far")])

    def target(x):
        return layer(x, use_causal_mask=False)

    (first, *_) = causality_report(target, sequence_length=9, hidden_dim=8, num_cuts=3, quick=True).leaks
    assert first.layer.endswith("far") and first.heads == (0, 1)  # 4 ahead, beyond the reach of the other


def test_a_report_is_read_from_json():
    model = language_model(attention(causal=False, name="bad"))
    with pytest.raises(CausalityError) as caught:
        assert_causal(model, sequence_length=8, num_cuts=2, quick=True)
    report = json.loads(caught.value.report.to_json())
    assert report["is_causal"] is False and report["max_gradient"] is None
    assert report["leaks"][0]["layer"] == "bad" and report["leaks"][0]["heads"] == [0, 1]
    inputs = np.ones((1, 4, 2), "float32")
    infinite = causality_report(lambda x: x + 0 * ops.log(ops.min(x)), inputs=inputs, gradients=False)
    assert json.loads(infinite.to_json())["max_change"] == "inf"


def test_an_audit_in_training_draws_the_same_dropout():
    report = assert_causal(language_model(attention(), dropout=0.5), sequence_length=12, training=True, quick=True)
    assert report.checks == ("perturbation",)  # prefixes would draw others


def test_cuts_that_the_target_does_not_take_are_told():
    def target(x):
        best = ops.top_k(x[:, :, 0], 3)[0]  # of at least three positions
        return x + 0 * ops.sum(best)

    report = causality_report(target, sequence_length=8, hidden_dim=4, num_cuts=7, quick=True)
    assert report.is_causal and report.skipped_cuts == (1, 2)
    assert "skipped cuts at 1, 2: the target does not accept such short sequences" in report.to_text()
    assert json.loads(report.to_json())["skipped_cuts"] == [1, 2]
