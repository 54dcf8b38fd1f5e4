"""The table of decoders in docs/converting.md, made by trying: `python -m docs.tables.decoders` prints it.

Of each decoder of KerasHub a tiny one with random weights is made sparse with a window as long as the sequence, and
compared with the dense one in logits and greedy text.
"""

import warnings

import keras
import numpy as np

from tests.convert.swap.decoder_models import FAMILIES, VOCABULARY, assert_greedy, complete, decoder, generated
from tests.pages import markdown_table
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.layers import LocalAttention

LENGTH = 24
COLUMNS = (
    "decoder",
    "carried over, in addition to rotary positions and GQA",
    "logits differ by",
    "greedy text",
)
BOUND = 1e-5  # of the largest logit; the results change from machine to machine
SETTINGS = {
    "use_bias": "biases",
    "logit_soft_cap": "soft cap",
    "attention_scale": "scale",
    "use_sink": "sinks",
    "use_query_key_norm": "norms of queries and keys",
    "use_value_norm": "norms of values",
    "use_gate": "gates",
    "alibi_slopes": "ALiBi",
}


def rows():
    """Yield a row for each decoder."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, VOCABULARY, (2, LENGTH))
    for family, (name, _) in FAMILIES.items():
        dense, settings = decoder(family), set()

        def make_layer(attention, settings=settings):
            arguments = arguments_of(attention, window=LENGTH)
            settings |= {word for setting, word in SETTINGS.items() if arguments.get(setting)}
            settings |= {"window"} if arguments["window"] < LENGTH else set()
            kind, scaling = arguments.get("rotary_type", "linear"), arguments.get("rotary_scaling_factor", 1)
            settings |= {f"{kind} frequencies"} if kind != "linear" or scaling != 1 else set()
            return LocalAttention(**arguments)

        sparse = replace_attention(dense, make_layer, print_fn=None)
        inputs = complete(dense, {"token_ids": ids, "padding_mask": np.ones_like(ids)})
        logits = [keras.ops.convert_to_numpy(model(inputs)) for model in (dense, sparse)]
        words = words_of(np.abs(logits[0] - logits[1]).max() / np.abs(logits[0]).max())
        yield f"{name}, {family}", ", ".join(sorted(settings)) or "-", words, _same_text(dense, sparse, ids)


def words_of(difference):
    """Return a difference as the table has it."""
    return "1e-5 at most" if difference < BOUND else f"{difference:.0e}"


def _same_text(dense, sparse, ids):
    try:
        wanted = generated(dense, ids, (5, 9))
    except Exception as error:  # any error of KerasHub
        return f"the dense model raises {type(error).__name__}"
    found = generated(sparse, ids, (5, 9))
    if (wanted == found).all():
        return "the same"
    assert_greedy(sparse, found, (5, 9))
    return "that of full passes, unlike the dense model's"


def table():
    return markdown_table([COLUMNS, *rows()])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(table())
