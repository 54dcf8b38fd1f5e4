"""Streaming generation: `python -m benchmarks.streaming`.

A language model with a sliding window and attention to the first tokens decodes 100,000 tokens. Its cache has a
constant size (`init_cache(max_length=None)`), with positions counted inside the cache, as in StreamingLLM. Prints
tokens per second, bytes of the cache and memory of the process at ten points; all stay constant. Takes a few minutes on
two cores.
"""

import argparse
import functools
import resource
import sys
import time

import numpy as np
from keras import ops

from benchmarks.decoding import cache_bytes
from tf_sparse_attention import models
from tf_sparse_attention.models.programs import compiled
from tf_sparse_attention.patterns import First, Window

HEADS = {"num_heads": 8, "num_key_value_heads": 2, "key_dim": 64, "position": "rotary"}
CHUNK = 500  # tokens per call of the program


def build(window=256, num_first=4):
    """Return a language model of two layers."""
    part = {"layer": "SparseAttention", "pattern": Window(window) | First(num_first), **HEADS}
    return models.LanguageModel(models.Backbone(258, 2, 512, [part], intermediate_dim=1024, seed=0))


def decode(model, token_ids, index, cache):
    """Decode `CHUNK` tokens greedily; return the last ids, int32 (B, 1), the index and the cache."""

    def add(count, token_ids, index, cache):
        logits, cache = model.extend(token_ids, cache, index=index)
        return count + 1, ops.cast(ops.argmax(logits, axis=-1), "int32"), index + 1, cache

    start = (ops.zeros((), "int32"), token_ids, index, cache)
    return ops.while_loop(lambda count, *_: count < CHUNK, add, start)[1:]


def run(num_tokens, num_rows=10):
    """Yield (tokens so far, tokens per second since the last row, bytes of the cache, peak MB of the process)."""
    model = build()
    program = compiled(functools.partial(decode, model), [model])
    state = np.ones((1, 1), "int32"), np.zeros((), "int32"), model.init_cache(1, None, positions_in_cache=True)
    state = program(*state)  # compiles
    chunks = max(num_tokens // CHUNK // num_rows, 1)
    for _ in range(num_rows):
        begin = time.perf_counter()
        for _ in range(chunks):
            state = program(*state)
        done = int(ops.convert_to_numpy(state[1]))
        speed = chunks * CHUNK / (time.perf_counter() - begin)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 if sys.platform == "darwin" else 1024)
        yield done, speed, cache_bytes(state[2]), peak


def main():
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000, help="tokens to decode (default: %(default)s)")
    print("| tokens | tokens per second | bytes of the cache | peak memory in MB |\n|---|---|---|---|")
    for done, speed, size, peak in run(parser.parse_args().tokens):
        print(f"| {done:,} | {speed:.0f} | {size:,} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
