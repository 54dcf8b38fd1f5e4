"""Error of sparse attention in each layer of a pretrained decoder, before and after a short distillation.

python -m benchmarks.pretrained_layers FILE.gguf [--texts FILE ...] [--tokens 2048] [--keys 512] [--patterns blocks ..]
    [--steps 100] [--healing_texts FILE ...]

Loads a decoder from a GGUF file and replaces all attention without a window by one pattern. Each sparse attention gets
the inputs of the dense attention in the dense model. Prints JSON lines, for the last `QUERIES` queries of each text:

- "mass": share of the dense attention weights on keys that a query reads, averaged over heads and queries. Means of
  clusters are not counted.
- "error": norm of the difference to the dense output, relative to the norm of the dense output.

With `--steps`, `tsa.convert.heal` then trains each attention on rows of `--tokens` tokens of `--healing_texts`. One
more line per text has its losses in nats per token: of the dense model, and before and after the training.
"""

import functools
import itertools
import json
import pathlib
import time

import keras
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from benchmarks.pretrained import NAMES_OF_PATTERNS, argument_parser, patterns, rounded, text_ids, token_losses
from tf_sparse_attention.convert.swap.heal import attention_pairs
from tf_sparse_attention.convert.swap.make_sparse import sparse_layer
from tf_sparse_attention.convert.swap.recorded_calls import recorded_calls
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import rotate_query_and_key
from tf_sparse_attention.ops.shapes import repeat_key_heads

QUERIES = 256


def model_inputs(ids):
    """Return the inputs of a decoder for token ids (B, T)."""
    return {"token_ids": ids, "padding_mask": np.ones(ids.shape, "int32")}


def read_mass(attention, x):
    """Return the share of the dense weights of the last queries on the keys that they read, of inputs (1, T, D)."""
    query, key, value = attention.project(x)
    read = attention.dense_mask((query, key, value), TokenMasks(), causal=True)[:, :, -QUERIES:]
    query, key = rotate_query_and_key(attention.position_encoding, *attention.score_inputs(query, key))
    key = repeat_key_heads(key, query.shape[1])
    scores = ops.matmul(query[:, :, -QUERIES:], ops.swapaxes(key, 2, 3))
    is_later = np.arange(x.shape[1]) > np.arange(x.shape[1])[-QUERIES:, None]
    weights = ops.softmax(ops.where(is_later, -1e30, ops.cast(scores, "float32")), axis=-1)
    return float(ops.mean(ops.sum(ops.where(read, weights, 0), axis=-1)))


def layer_rows(dense, sparse, ids):
    """Yield "layer", "mass" and "error" of each sparse attention without a window, for token ids (T,)."""
    pairs = attention_pairs(dense, sparse)
    with recorded_calls(layer for layer, _ in pairs.values()) as calls:
        dense.backbone(model_inputs(ids[None]))
    for number, (layer, swapped) in enumerate(pairs.values()):
        if not isinstance(swapped.attention, SparseAttention):
            continue
        (call,) = calls[id(layer)]
        output = swapped.attention(call.inputs, use_causal_mask=True)
        difference, wanted = (
            ops.sqrt(ops.sum(ops.square(each[:, -QUERIES:]))) for each in (output - call.output, call.output)
        )
        yield {
            "layer": number,
            "mass": read_mass(swapped.attention, call.inputs),
            "error": float(difference) / float(wanted),
        }


def training_rows(tokenizer, texts, length, count):
    """Return `count` rows of `length` token ids, from all texts in turn."""
    ids = [np.asarray(tokenizer(path.read_text(encoding="utf-8"))) for path in texts]
    rows = [each[: len(each) // length * length].reshape(-1, length) for each in ids]
    mixed = [row for group in itertools.zip_longest(*rows) for row in group if row is not None]
    if len(mixed) < count:
        raise SystemExit(f"`--healing_texts` must have {count * length} tokens. Received: {len(mixed) * length}.")
    return mixed[:count]


def losses(model, tokenizer, options):
    """Return the mean loss of each text, in nats per token."""
    return [float(token_losses(model, text_ids(tokenizer, path, options.tokens)).mean()) for path in options.texts]


def results(model, name, options, dense_losses):
    """Yield the rows of one pattern."""
    tokenizer, pattern = model.preprocessor.tokenizer, patterns(options.keys, options.tokens)[name]
    sparse = tsa.convert.replace_attention(model, functools.partial(sparse_layer, pattern=pattern), print_fn=None)
    own = {"model": options.model.stem, "attention": name, "tokens": options.tokens, "keys": options.keys}
    for path in options.texts:
        for row in layer_rows(model, sparse, text_ids(tokenizer, path, options.tokens)):
            yield {**own, "text": path.name, **row}
    if not options.steps:
        return
    before = losses(sparse, tokenizer, options)
    rows = training_rows(tokenizer, options.healing_texts, options.tokens, options.steps + 1)
    begun = time.perf_counter()
    healing = tsa.convert.heal(model, sparse, [model_inputs(row[None]) for row in rows], verbose=False)
    own |= {"steps": options.steps, "seconds": time.perf_counter() - begun}
    own |= {"error_before": np.mean([*healing.before.values()]), "error_after": np.mean([*healing.after.values()])}
    for path, *found in zip(options.texts, dense_losses, before, losses(sparse, tokenizer, options), strict=True):
        yield {**own, "text": path.name, **dict(zip(("dense", "before", "after"), found, strict=True))}


def main():
    """Print one JSON line per pattern, text and layer."""
    names = [name for name in NAMES_OF_PATTERNS if name != "dense"]
    parser = argument_parser(__doc__, 2048, names, names)
    parser.add_argument("--steps", type=int, default=0, help="steps of distillation")
    parser.add_argument("--healing_texts", nargs="+", type=pathlib.Path, help="text files of the distillation")
    options = parser.parse_args()
    if options.steps and not options.healing_texts:
        parser.error("`--healing_texts` must be set with `--steps`.")
    model = tsa.convert.from_gguf(options.model)
    dense_losses = losses(model, model.preprocessor.tokenizer, options) if options.steps else []
    for name in options.patterns:
        for row in results(model, name, options, dense_losses):
            print(json.dumps(rounded(row)), flush=True)
        keras.backend.clear_session()


if __name__ == "__main__":
    main()
