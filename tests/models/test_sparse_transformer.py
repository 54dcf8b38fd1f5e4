"""The Sparse Transformer is the one of its paper, equations 9 to 14, worked out in NumPy from the model's weights."""

import keras
import numpy as np
import pytest

from tests.oracle import definitions
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


class Book:
    """The paper's functions with the weights of a model."""

    def __init__(self, model, seen):
        self.weights = {weight.path.split("/", 1)[1]: np.asarray(weight) for weight in model.weights}
        self.num_layers, self.seen = model.backbone.num_layers, seen

    def weight(self, name):
        return self.weights[name]

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return scaled * self.weight(f"{name}/gamma") + self.weight(f"{name}/beta")

    def attention(self, x, name):
        heads = [
            np.einsum("td,dnh->nth", x, self.weight(f"{name}/{side}/kernel"))
            + self.weight(f"{name}/{side}/bias")[:, None]
            for side in ("query", "key", "value")
        ]
        scores = np.where(self.seen, np.einsum("nth,nsh->nts", *heads[:2]) / SIZE**0.5, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        out = np.einsum("nts,nsh,nhd->td", shares, heads[2], self.weight(f"{name}/attention_output/kernel"))
        return out + self.weight(f"{name}/attention_output/bias")

    def feed_forward(self, x, name):
        inner = x @ self.weight(f"{name}/inner/kernel") + self.weight(f"{name}/inner/bias")
        gelu = inner / (1 + np.exp(-1.702 * inner))
        return gelu @ self.weight(f"{name}/output/kernel") + self.weight(f"{name}/output/bias")

    def resblock(self, h, block, kind):
        a = self.attention(self.norm(h, f"{block}/attention_norm"), f"{block}/attention/{kind}_0")
        b = self.feed_forward(self.norm(h + a, f"{block}/feed_forward_norm"), f"{block}/feed_forward")
        return a + b

    def logits(self, ids, kind):
        places = np.unravel_index(np.arange(len(ids)), GRID)
        h = self.weight("embedding/embeddings")[ids]
        h = h + sum(self.weight(f"grid_embedding/axis_{axis}")[place] for axis, place in enumerate(places))
        for layer in range(self.num_layers):
            h = h + self.resblock(h, f"block_{layer}", kind)
        last = self.norm(h, "final_norm")
        return last @ self.weight("to_vocabulary/kernel") + self.weight("to_vocabulary/bias")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_model_is_the_equations_of_the_paper(pattern):
    model, ids = make(pattern), np.random.default_rng(1).integers(20, size=(2, 30))
    seen = {
        "fixed": definitions.fixed(30, 30, 8, 2, 0, "merged", True),
        "strided": definitions.strided(30, 30, 4, "merged", True),
    }
    book = Book(model, seen[pattern])
    expected = [book.logits(row, pattern) for row in ids]
    np.testing.assert_allclose(model(ids), expected, rtol=1e-9, atol=1e-9)
