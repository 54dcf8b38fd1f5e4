"""The table layer x head option of docs/patterns.md, made by trying: `python -m docs.tables.heads` prints it.

A model whose heads have an option is made sparse, each layer with settings that let a query see all earlier keys, and
what comes out is compared with what the dense attention of Keras or KerasHub gives.
"""

import functools
import warnings

import keras
import numpy as np

from docs.tables.decoders import words_of
from tests.contracts import normal
from tests.convert.swap.decoder_models import VOCABULARY, decoder
from tests.convert.swap.swap_models import randomized
from tests.pages import markdown_table
from tf_sparse_attention import layers
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.patterns import First, Heads, Nearest, Window

LENGTH, SIZE = 24, 12
# Layers that can show a query all earlier keys. (Routing divides queries and keys by their norms, and cannot be dense.)
ROWS = {
    "`LocalAttention`, window": (layers.LocalAttention, {"window": LENGTH}),
    "`LocalAttention`, blocks": (layers.LocalAttention, {"block_size": LENGTH}),
    "`LocalAttention2D`": (layers.LocalAttention2D, {"width": LENGTH, "block_shape": (1, LENGTH)}),
    "`DenseAttention`": (layers.DenseAttention, {}),
    "`StridedAttention`, merged": (layers.StridedAttention, {"stride": LENGTH, "heads": "merged"}),
    "`FixedAttention`, merged": (
        layers.FixedAttention,
        {"block_size": LENGTH // 2, "num_summary": LENGTH // 2, "heads": "merged"},
    ),
    "`BlockSelectedAttention`": (layers.BlockSelectedAttention, {"block_size": 8, "num_blocks": 3}),
    "`Window(12) \\| First(12)`": (layers.SparseAttention, {"pattern": Window(12) | First(12)}),
    "`Window(4) \\| Nearest(1, 24)`": (layers.SparseAttention, {"pattern": Window(4) | Nearest(1, LENGTH), "seed": 0}),
    "`Window` and `Nearest` heads": (
        layers.SparseAttention,
        {"pattern": Heads([(2, Window(LENGTH)), (2, Nearest(1, LENGTH))]), "seed": 0},
    ),
}


def _of_keras(**arguments):
    """Return a model of one `keras.layers.GroupQueryAttention`, and its input."""
    inputs = keras.Input((LENGTH, SIZE))
    attention = keras.layers.GroupQueryAttention(6, 4, 2, **arguments)
    model = keras.Model(inputs, attention(inputs, inputs, use_causal_mask=True))
    return randomized(model, 0), normal(2, LENGTH, SIZE)


def _of_hub(family, **changes):
    """Return a decoder of KerasHub of one layer, and its inputs."""
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (2, LENGTH))
    return decoder(family, num_layers=1, **changes), {"token_ids": ids, "padding_mask": np.ones_like(ids)}


WIDE = {"sliding_window_size": 4 * LENGTH}
COLUMNS = {
    "grouped heads (Keras)": _of_keras,
    "gate (Keras)": functools.partial(_of_keras, use_gate=True),
    "sinks, biases, YaRN (gpt-oss)": functools.partial(_of_hub, "gpt_oss", sliding_window=4 * LENGTH),
    "soft cap, scale (Gemma 2)": functools.partial(_of_hub, "gemma2", **WIDE),
    "norms (Qwen 3)": functools.partial(_of_hub, "qwen3", **WIDE),
    "Llama 3 frequencies": functools.partial(_of_hub, "llama3"),
}


def cell(model, inputs, layer_class, own):
    """Return how far a model with another attention is from the dense one, in words."""

    def make_layer(attention):
        return layer_class(**arguments_of(attention) | own)

    sparse = replace_attention(model, make_layer, print_fn=None, keep_windows=False)
    dense_output, output = (keras.ops.convert_to_numpy(each(inputs)) for each in (model, sparse))
    return words_of(np.abs(dense_output - output).max())


def table():
    models = [make() for make in COLUMNS.values()]
    rows = [["layer", *COLUMNS], *([name, *(cell(*model, *own) for model in models)] for name, own in ROWS.items())]
    return markdown_table(rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(table())
