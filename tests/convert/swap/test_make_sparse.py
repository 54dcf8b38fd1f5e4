import keras
import numpy as np
import pytest

from tests.convert.swap.decoder_models import assert_greedy, decoder, generated
from tests.draws import first
from tf_sparse_attention import convert
from tf_sparse_attention.layers import SwappedAttention

keras_hub = pytest.importorskip("keras_hub")
IDS = np.random.default_rng(0).integers(1, 50, (1, 600))


def logits(model, length):
    return keras.ops.convert_to_numpy(
        model({"token_ids": IDS[:, :length], "padding_mask": np.ones((1, length), "int32")})
    )


def test_short_texts_have_the_results_of_the_dense_model():
    dense, lines = decoder("llama"), []
    sparse = convert.make_sparse(dense, keys=64, print_fn=lines.append)
    np.testing.assert_allclose(logits(sparse, 56), logits(dense, 56), atol=1e-5)
    np.testing.assert_array_equal(*(generated(model, IDS[:, :40], (20,)) for model in (sparse, dense)))
    assert lines[0].startswith("2 layers: Window(8) | First(4) | RetrievedClusters(6). Of 8,192 tokens")
    assert "reads at most 64 keys" in lines[0]


@pytest.mark.parametrize(
    ("max_length", "num_nodes", "read"),
    first([(None, None, "1,024 clusters"), (65_536, 3, "1,024 nodes and 24 clusters")], 1),
)
def test_long_texts_are_continued_as_a_full_pass_continues_them(max_length, num_nodes, read):
    dense, lines = decoder("llama"), []
    sparse = convert.make_sparse(dense, keys=64, max_length=max_length, print_fn=lines.append)
    patterns = [layer.attention.pattern for layer in sparse._flatten_layers() if isinstance(layer, SwappedAttention)]
    assert [pattern.parts[-1].num_nodes for pattern in patterns] == [num_nodes] * 2
    assert f"and the means of {read}" in lines[0]
    assert np.abs(logits(sparse, 600) - logits(dense, 600)).max() > 0.01
    text = generated(sparse, IDS, (590,))  # beyond a segment, so that clusters are read
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


@pytest.mark.parametrize(("name", "value"), [("keys", 63), ("max_length", 0)])
def test_sizes_have_a_minimum(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        convert.make_sparse(decoder("llama"), **{name: value})
