"""The Sparse Transformer is the one of its paper, equations 9 to 14, worked out in NumPy from the model's weights."""

import keras
import numpy as np
import pytest

from tests.oracle.layers import dense_call
from tf_sparse_attention.models import LanguageModel

GRID, HEADS, SIZE = (4, 8), 2, 8
PATTERNS = {
    "fixed": {"layer": "FixedAttention", "block_size": 8, "num_summary": 2, "heads": "merged"},
    "strided": {"layer": "StridedAttention", "stride": 4, "heads": "merged"},
}


def make(pattern):
    keras.utils.set_random_seed(0)
    model = LanguageModel.from_preset(
        "sparse_transformer_enwik8",
        vocabulary_size=20,
        num_layers=3,
        hidden_dim=16,
        intermediate_dim=32,
        attention=[{**PATTERNS[pattern], "num_heads": HEADS, "key_dim": SIZE}],
        embedding={"grid": GRID},
        seed=0,
        dtype="float64",
    )
    random = np.random.default_rng(0)
    for weight in model.weights:  # no zeros or ones, behind which a term could hide
        weight.assign(random.normal(size=weight.shape, scale=0.5))
    return model


def logits_of_the_paper(model, ids):
    """Return the logits (T, V) of token ids (T,) by the equations, with the weights of a model."""
    weights = {weight.path.split("/", 1)[1]: np.asarray(weight) for weight in model.weights}

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def dense(x, name):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    places = np.unravel_index(np.arange(len(ids)), GRID)
    h = weights["embedding/embeddings"][ids]
    h = h + sum(weights[f"grid_embedding/axis_{axis}"][place] for axis, place in enumerate(places))
    for number, block in enumerate(model.backbone.blocks):
        name = f"block_{number}"
        a = dense_call(block.attention, norm(h, f"{name}/attention_norm")[None], causal=True).output[0]
        inner = dense(norm(h + a, f"{name}/feed_forward_norm"), f"{name}/feed_forward/inner")
        h = h + a + dense(inner / (1 + np.exp(-1.702 * inner)), f"{name}/feed_forward/output")
    return dense(norm(h, "final_norm"), "to_vocabulary")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_model_is_the_equations_of_the_paper(pattern):
    model, ids = make(pattern), np.random.default_rng(1).integers(20, size=(2, 30))
    np.testing.assert_allclose(model(ids), [logits_of_the_paper(model, row) for row in ids], rtol=1e-9, atol=1e-9)
