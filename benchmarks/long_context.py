"""Decoding of one attention layer after long contexts: time, bytes read and bytes held.

python -m benchmarks.long_context [--lengths 8192 32768 131072] [--keys 512] [--heads 9 3] [--prefill 8192]
    [--patterns dense clusters ..]

Each layer decodes single tokens in one compiled program, with a cache of random keys that is full up to the last
`SPARE` tokens. Runs of all layers alternate. Use JAX (KERAS_BACKEND=jax): on TensorFlow, a program for one token copies
the cache. Columns:

- "ms", "fastest": median and minimum of the milliseconds of a token. "ratio": dense median / median.
- "read": MiB of keys, values, means and slots of cluster members that a token reads, computed from the pattern. Query
  heads that select separately read separately.
- "held": MiB of the cache.
- "prefill": seconds of `extend` with a prompt of as many tokens, for lengths up to `--prefill`.
"""

import argparse
import time

import keras
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from benchmarks.decoding import at_position, cache_bytes, compiled
from benchmarks.pretrained import NAMES_OF_PATTERNS, patterns
from tf_sparse_attention.convert.swap.make_sparse import SEGMENT
from tf_sparse_attention.patterns import First, RetrievedClusters, SelectedBlocks, Window
from tf_sparse_attention.patterns.cache_policies import EMPTY
from tf_sparse_attention.patterns.key_clusters import NODE_SIZE
from tf_sparse_attention.patterns.pattern import primitives

SPARE, SIZE, FLOAT_BYTES = 256, 64, 4  # tokens, channels per head, bytes of a number
MIB = 2**20


def rows_read(pattern, length, num_heads, num_key_heads):
    """Return how many keys, values and means of `SIZE` numbers a token reads."""
    if pattern is None:
        return 2 * num_key_heads * length
    rows = 0
    for leaf in primitives(pattern):
        if isinstance(leaf, Window | First):
            rows += 2 * num_key_heads * (leaf.size if isinstance(leaf, Window) else leaf.count)
        elif isinstance(leaf, SelectedBlocks):
            rows += num_key_heads * (length // leaf.block_size) + 2 * num_heads * leaf.num_blocks * leaf.block_size
        elif isinstance(leaf, RetrievedClusters):
            parts = 2 if leaf.use_estimate else 1  # mean keys, and mean values
            clusters = length // leaf.segment * (leaf.segment // leaf.cluster_size)
            rows += num_key_heads * (leaf.segment // leaf.cluster_size)  # runs of the incomplete segment
            rows += 2 * num_heads * (leaf.num_clusters + 1) * leaf.cluster_size
            rows += num_key_heads * length // SIZE if leaf.use_estimate else 0  # slots of members, one number each
            if leaf.num_nodes is None:
                rows += parts * num_key_heads * clusters
            else:
                rows += parts * num_key_heads * (clusters // NODE_SIZE)
                rows += parts * num_heads * min(leaf.num_nodes * NODE_SIZE, clusters)
    return rows


def filled(cache, length, rng):
    """Return a cache with random rows, and with the positions of `length` tokens."""
    result = {}
    for name, x in cache.items():
        if isinstance(x, dict):
            result[name] = filled(x, length, rng)
        elif name == "position":
            slots = np.arange(x.shape[-1])
            last = slots + (length - 1 - slots) // len(slots) * len(slots)  # the last position in a slot of a ring
            stored = np.where(last >= 0, last - EMPTY, 0)
            result[name] = ops.convert_to_tensor(np.broadcast_to(stored, x.shape), x.dtype)
        elif name == "cluster_slots":
            order = np.concatenate([rng.permutation(SEGMENT) + start for start in range(0, x.shape[-1], SEGMENT)])
            result[name] = ops.convert_to_tensor(np.broadcast_to(order, x.shape), x.dtype)
        elif keras.backend.is_float_dtype(x.dtype):
            result[name] = ops.convert_to_tensor(rng.normal(size=x.shape).astype("float32"), x.dtype)
        else:
            result[name] = x
    return at_position(result, length)


def one_token(layer):
    """Return the compiled `extend` of a layer. On JAX, it writes to the given cache and does not copy it."""
    if keras.backend.backend() != "jax":
        return compiled(lambda x, cache: layer.extend(x, cache))
    import jax

    return jax.jit(lambda x, cache: layer.extend(x, cache), donate_argnums=1)


class Decoding:
    """A layer that decodes single tokens.

    Args:
        pattern: a pattern, or None for dense attention.
        length: slots of the cache.
        heads: numbers of query heads and of key heads.
    """

    def __init__(self, pattern, length, heads):
        num_heads, num_key_heads = heads
        sizes = {"num_heads": num_heads, "key_dim": SIZE, "num_key_value_heads": num_key_heads, "position": "rotary"}
        dense = tsa.layers.DenseAttention
        self.layer = dense(**sizes) if pattern is None else tsa.layers.SparseAttention(**sizes, pattern=pattern)
        self.x = keras.random.normal((1, length, num_heads * SIZE), seed=0)
        self.layer.build(self.x.shape)
        self.cache = filled(self.layer.init_cache(1, length), length - SPARE, np.random.default_rng(0))
        self.held = cache_bytes(self.cache)
        self.read = rows_read(pattern, length, *heads) * SIZE * FLOAT_BYTES
        self.step = one_token(self.layer)
        self.seconds = []

    def decode(self):
        """Decode one token and record the time."""
        begun = time.perf_counter()
        y, self.cache = self.step(self.x[:, :1], self.cache)
        ops.convert_to_numpy(y)
        self.seconds.append(time.perf_counter() - begun)

    def prefill(self):
        """Return the seconds of a prompt that fills the cache."""
        empty = self.layer.init_cache(1, self.x.shape[1])
        program = compiled(lambda x: self.layer.extend(x, empty, index=0))  # with the cache, which takes time too
        ops.convert_to_numpy(program(self.x)[0])  # compiles
        begun = time.perf_counter()
        ops.convert_to_numpy(program(self.x)[0])
        return time.perf_counter() - begun


def table_rows(length, options):
    """Yield one row of text per pattern."""
    chosen = {name: patterns(options.keys, length)[name] for name in options.patterns}
    runs = {name: Decoding(pattern, length, options.heads) for name, pattern in chosen.items()}
    for number in range(options.steps + 2):
        for run in runs.values():
            run.decode()
            if number < 2:  # compiles
                run.seconds.clear()
    dense = np.median(runs["dense"].seconds) if "dense" in runs else float("nan")
    for name, run in runs.items():
        median = np.median(run.seconds)
        row = [f"{length:,}", name, f"{1e3 * median:.2f}", f"{1e3 * min(run.seconds):.2f}", f"{dense / median:.1f}"]
        row += [f"{run.read / MIB:.1f}", f"{run.held / MIB:.1f}"]
        yield [*row, f"{run.prefill():.1f}" if length <= options.prefill else "-"]


def main():
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 32768, 131072], help="slots of the cache")
    parser.add_argument("--keys", type=int, default=512, help="number of keys that a query reads")
    parser.add_argument("--heads", type=int, nargs=2, default=[9, 3], help="numbers of query heads and key heads")
    parser.add_argument("--steps", type=int, default=100, help="number of decoded tokens, at most 250")
    parser.add_argument("--prefill", type=int, default=0, help="longest prompt to measure")
    names = ["dense", "window", "blocks", "clusters", "clusters, no estimate", "clusters, nodes"]
    parser.add_argument("--patterns", nargs="+", choices=NAMES_OF_PATTERNS, default=names, help="their names")
    options = parser.parse_args()
    if options.steps >= SPARE - 2 or min(options.lengths) < 2 * SEGMENT:
        parser.error(f"`--steps` must be less than {SPARE - 2}, and `--lengths` at least {2 * SEGMENT}.")
    columns = ["length", "attention", "ms", "fastest", "ratio", "read", "held", "prefill"]
    for row in (columns, ["---"] * len(columns)):
        print(f"| {' | '.join(row)} |", flush=True)
    for length in options.lengths:
        for row in table_rows(length, options):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
