"""Old names of the layers' arguments, attributes and methods: accepted for one more release, with a warning."""

import warnings

import keras
import numpy as np
import pytest

from tf_sparse_attention.layers import (
    GlobalLocalAttention,
    LocalAttention,
    MixedAttention,
    SoftmaxFeedForward,
    TransformerBlock,
)

X = np.random.default_rng(0).standard_normal((2, 6, 8)).astype("float32")
OLD = {
    "further_masks": "extra_mask_names",
    "reason_against_cache": "cache_unsupported_reason",
    "reason_against_crossing": "cross_cache_unsupported_reason",
}


def marked(**options):
    return GlobalLocalAttention(2, 4, window=3, **options)


@pytest.mark.parametrize("old", OLD)
def test_attributes_had_other_names(old):
    made = [marked(), MixedAttention([marked()])]
    made += [TransformerBlock(marked())] if old == "reason_against_cache" else []
    for layer in made:
        with pytest.warns(DeprecationWarning, match=f"`{old}` is now `{OLD[old]}`"):
            assert getattr(layer, old) == getattr(layer, OLD[old])


def test_an_unknown_attribute_is_an_error_as_ever():
    with pytest.raises(AttributeError, match="_query"):
        _ = marked().num_features
    with pytest.raises(AttributeError, match="extra_mask"):
        _ = marked().extra_mask


def test_decoding_to_another_sequence_had_another_name():
    local = LocalAttention(2, 4, window=3)
    local.build(X.shape, X.shape)
    for layer in (local, MixedAttention([local])):
        cache = layer.init_cross_cache(X)
        with pytest.warns(DeprecationWarning, match="`decode_across` is now `decode_cross`"):
            found = layer.decode_across(X[:, :1], cache, 0)
        np.testing.assert_array_equal(found, layer.decode_cross(X[:, :1], cache, 0))


def test_the_number_of_first_global_tokens_had_another_name():
    with pytest.warns(DeprecationWarning, match="`first_global` is now `num_first_global`"):
        layer = marked(first_global=2)
    with pytest.warns(DeprecationWarning, match="`first_global` is now `num_first_global`"):
        assert layer.first_global == layer.num_first_global == 2
    config = layer.get_config()
    assert config.pop("num_first_global") == 2
    assert GlobalLocalAttention.from_config({**config, "first_global": 2}).num_first_global == 2


def test_the_number_of_persistent_vectors_had_another_name():
    with pytest.warns(DeprecationWarning, match="`num_vectors` is now `num_persistent`"):
        layer = SoftmaxFeedForward(num_vectors=3)
    with pytest.warns(DeprecationWarning, match="`num_vectors` is now `num_persistent`"):
        assert layer.num_vectors == layer.num_persistent == 3
    config = layer.get_config()
    assert config.pop("num_persistent") == 3
    assert SoftmaxFeedForward.from_config({**config, "num_vectors": 3}).num_persistent == 3


def test_a_layer_is_saved_without_a_warning_of_its_old_names(tmp_path):
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, MixedAttention([marked()])(inputs))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.save(tmp_path / "model.keras")
    assert not [each for each in warned if "is now" in str(each.message)]


def test_a_window_may_have_the_name_that_keras_gives_it():
    assert LocalAttention(2, 4, sliding_window=3).get_config()["window"] == 3
    with pytest.raises(ValueError, match=r"`sliding_window` must be None where `window`.*sliding_window=3, window=4\."):
        LocalAttention(2, 4, window=4, sliding_window=3)
