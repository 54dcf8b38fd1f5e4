"""The page that shows how to add an attention: its code runs, and its layer keeps what every layer has to keep."""

import re

import numpy as np
import pytest
from keras import ops

from tests import contracts
from tests.conftest import ROOT
from tf_sparse_attention.analysis import assert_causal
from tf_sparse_attention.layers import LocalAttention


@pytest.fixture(scope="module")
def page():
    """Everything that the page's code defines, by name."""
    text, names = (ROOT / "docs" / "adding_an_attention.md").read_text(encoding="utf-8"), {}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)):
        exec(compile(block, f"adding_an_attention.md, block {number}", "exec"), names)
    return names


def test_the_mask_is_that_of_six_positions_by_hand(page):
    mask = contracts.to_numpy(page["dilated_mask"](6, 6, window=2, dilation=2, causal=True)).astype(int)
    rows = ["100000", "010000", "101000", "010100", "001010", "000101"]
    assert ["".join(map(str, row)) for row in mask] == rows


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 13, 70])
@pytest.mark.parametrize("masked", [False, True])
def test_the_fast_version_is_dense_attention_under_the_mask(page, length, causal, masked):
    settings = {"position": "alibi"}
    layer = page["DilatedAttention"](2, 4, window=9, dilation=3, **settings)
    layer.build((2, length, contracts.SIZE))
    contracts.with_random_weights(layer)
    dense = LocalAttention(2, 4, window=length, **settings)
    dense.build((2, length, contracts.SIZE))
    dense.set_weights(layer.get_weights())
    masks = contracts.random_masks(2, 2, length) if masked else {}
    x = contracts.normal(2, length, contracts.SIZE)
    output, weights = layer(x, use_causal_mask=causal, return_attention_scores=True, **masks)
    pattern = contracts.to_numpy(page["dilated_mask"](length, length, 9, 3, causal))
    masks["attention_mask"] = pattern & masks.get("attention_mask", True)
    expected = dense(x, return_attention_scores=True, **masks)
    contracts.assert_close(contracts.to_numpy(output), contracts.to_numpy(expected[0]))
    contracts.assert_close(contracts.to_numpy(weights), contracts.to_numpy(expected[1]))


@pytest.mark.parametrize(
    "check",
    [
        contracts.check_config_round_trip,
        contracts.check_padding,
        contracts.check_batch_mates,
        contracts.check_segments,
        contracts.check_state_is_left_alone,
    ],
)
def test_its_layer_keeps_the_contract(page, check):
    check(page["DILATED"])


def test_it_refuses_a_value_of_another_length(page):
    layer, x = page["DilatedAttention"](2, 4, window=3, dilation=2), contracts.normal(1, 9, contracts.SIZE)
    with pytest.raises(ValueError, match="must be as long as `query`"):
        layer(x, x[:, :5])


def test_its_layer_is_causal(page):
    assert_causal(page["DilatedAttention"](2, 4, window=3, dilation=2, dropout=0.3), sequence_length=20)


def test_its_pattern_is_that_of_the_mask(page):
    layer = page["DilatedAttention"](1, 4, window=3, dilation=2)
    pattern = layer.attention_pattern(np.zeros((1, 9, 8), "float32"), use_causal_mask=True)[0, 0]
    np.testing.assert_array_equal(pattern, page["dilated_mask"](9, 9, 3, 2, True))
    assert int(ops.sum(ops.cast(pattern, "int32"))) == 9 + 7 + 5
