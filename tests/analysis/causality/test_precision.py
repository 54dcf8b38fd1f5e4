"""Copies in another precision, and the causality audit of them."""

import keras
import pytest
from keras import layers

from tests.analysis.causality.audited_layers import RoundingAhead, SubclassedModel
from tf_sparse_attention.analysis import CausalityError, assert_causal, causality_report


def test_float64_tells_rounding_from_a_leak():
    with pytest.raises(CausalityError):
        assert_causal(RoundingAhead())
    report = assert_causal(RoundingAhead(), dtype="float64")
    assert report.atol == 1e-12
    assert 0 < report.max_change < 1e-12


@pytest.mark.full
def test_layers_made_without_a_policy_follow_the_copy():
    report = assert_causal(SubclassedModel(), sequence_length=12, dtype="float64")
    assert report.atol == 1e-12


def test_the_global_policy_is_put_back():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        causality_report(layers.Dense(3), dtype="float64")
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")


class WithoutConfig(layers.Layer):
    def __init__(self, size):
        super().__init__()

    def call(self, x):
        return x


class OfFixedPrecision(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(3, dtype="float32", name="inner")

    def call(self, x):
        return self.inner(x)


class WithMoreWeightsInACopy(layers.Layer):
    made = 0

    def build(self, shape):
        type(self).made += 1
        self.add_weight(shape=(self.made,), name="more")

    def call(self, x):
        return x


def test_what_cannot_be_copied_is_refused(subtests):
    for message, target in [
        ("`dtype`", lambda x: x),
        ("`dtype`", WithoutConfig(3)),
        (r"must take its precision from its dtype policy.*inner \(float32\)", OfFixedPrecision()),
        ("`target`", WithMoreWeightsInACopy()),
    ]:
        with subtests.test(target=str(target)), pytest.raises(ValueError, match=message):
            causality_report(target, dtype="float64")
