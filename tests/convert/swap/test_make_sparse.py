import keras
import numpy as np
import pytest

from tests.convert.swap.decoder_models import assert_greedy, decoder, generated
from tests.convert.swap.swap_models import transformer
from tf_sparse_attention import convert

keras_hub = pytest.importorskip("keras_hub")
IDS = np.random.default_rng(0).integers(1, 50, (1, 600))


def logits(model, length):
    return keras.ops.convert_to_numpy(
        model({"token_ids": IDS[:, :length], "padding_mask": np.ones((1, length), "int32")})
    )


@pytest.mark.full
def test_short_texts_have_the_results_of_the_dense_model():
    dense, lines = decoder("llama"), []
    sparse = convert.make_sparse(dense, keys=64, print_fn=lines.append)
    np.testing.assert_allclose(logits(sparse, 56), logits(dense, 56), atol=1e-5)
    expected = generated(dense, IDS[:, :30], (20,), run_eagerly=True)
    np.testing.assert_array_equal(generated(sparse, IDS[:, :30], (20,)), expected)
    assert lines[0].startswith("2 layers: Window(8) | First(4) | RetrievedClusters(6). Of 8,192 tokens")
    assert "reads at most 64 keys, and the means of 1,024 clusters" in lines[0]


@pytest.mark.full
def test_long_texts_are_continued_as_a_full_pass_continues_them():
    dense = decoder("llama")
    sparse = convert.make_sparse(dense, keys=64, print_fn=None)
    assert np.abs(logits(sparse, 600) - logits(dense, 600)).max() > 0.01
    text = generated(sparse, IDS, (590,), run_eagerly=True)  # beyond a segment, so that clusters are read
    assert_greedy(sparse, text, (590,))


@pytest.mark.full
def test_layers_with_a_window_keep_it():
    lines = []
    sparse = convert.make_sparse(decoder("gemma3"), keys=64, print_fn=lines.append)
    assert "1 layers: Window(8)" in lines[0] and "6 layers: their own window of 5 tokens" in lines[0]
    np.testing.assert_allclose(logits(sparse, 56), logits(decoder("gemma3"), 56), atol=1e-4)


def test_differences_from_the_dense_model_are_reported():
    lines = []
    convert.make_sparse(decoder("gpt_neo_x"), print_fn=lines.append)
    assert "2 layers: KerasHub's `generate` rotates the query of a step as position 0" in lines[0]


def test_the_number_of_keys_has_a_minimum():
    with pytest.raises(ValueError, match="`keys`"):
        convert.make_sparse(decoder("llama"), keys=63)


def test_attention_that_is_not_causal_is_an_error():
    with pytest.raises(
        ValueError, match=r"(?s)attention_0 cannot be a SparseAttention.*`use_causal_mask` must be True"
    ):
        convert.make_sparse(transformer(num_layers=1))
