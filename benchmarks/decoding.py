"""Tokens that models decode in a second at several positions, and the bytes of their caches.

python -m benchmarks.decoding [--positions 512 8192] [--heads 8] [--markdown]

All models are alike but for their attention: local, local and routed, strided, and dense, which is a window as long as
the cache. Each decodes greedily in one compiled loop that begins at a position; figures are those of the best run, and
the last column compares the last position with the first in the same process.
"""

import argparse
import time

import keras
from keras import ops

from tf_sparse_attention.models import Backbone, LanguageModel

KEYS = 256  # that a query of a sparse head sees


def parser():
    """Returns the command line."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--positions", type=int, nargs="+", default=[512, 2048, 8192], help="where loops begin")
    arguments.add_argument("--steps", type=int, default=64, help="tokens of a loop")
    arguments.add_argument("--repeats", type=int, default=5, help="runs, of which the best counts")
    arguments.add_argument("--layers", type=int, default=2, help="blocks of each model")
    arguments.add_argument("--heads", type=int, default=8, help="heads, of 64 channels each")
    arguments.add_argument("--batch", type=int, default=1, help="rows that are decoded together")
    arguments.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    return arguments


def attention(kind, heads, length):
    """Returns the parts of the attention of a kind of model, as `Backbone` takes them."""
    sizes = {"num_heads": heads, "key_dim": 64}
    local = {"layer": "LocalAttention", **sizes, "window": KEYS, "position": "rotary"}
    routing = {"layer": "RoutingAttention", "key_dim": 64, "num_clusters": 16, "cluster_size": KEYS}
    return {
        "local": [local],
        "local and routed": [{**local, "num_heads": heads // 2}, {**routing, "num_heads": heads - heads // 2}],
        "strided": [{"layer": "StridedAttention", **sizes, "stride": 128, "heads": "merged"}],
        "dense": [{**local, "window": length}],
    }[kind]


KINDS = ("local", "local and routed", "strided", "dense")


def make_model(kind, layers, heads, length):
    """Returns a language model of bytes."""
    keras.utils.set_random_seed(0)
    width = 64 * heads
    return LanguageModel(Backbone(258, layers, width, attention(kind, heads, length), intermediate_dim=4 * width))


def cache_bytes(cache):
    """Returns the bytes of all tensors of a cache."""
    sizes = {"float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
    leaves = keras.tree.flatten(cache)
    return sum(sizes[keras.backend.standardize_dtype(x.dtype)] * int(ops.prod(ops.shape(x))) for x in leaves)


def make_loop(model, steps):
    """Returns a function (cache, index) that decodes greedily and returns the last ids; one program for all positions.

    The loop does not give the cache back, so that each call begins with the same one.
    """

    def loop(cache, index):
        def step(number, ids, cache):
            logits, cache = model.decode(ids, cache, index + number)
            return number + 1, ops.cast(ops.argmax(logits, axis=-1), "int32"), cache

        rows = ops.shape(keras.tree.flatten(cache)[0])[0]
        start = ops.zeros((), "int32"), ops.ones((rows, 1), "int32"), cache
        return ops.while_loop(lambda number, *_: number < steps, step, start)[1]

    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(loop)
    import tensorflow as tf

    return tf.function(loop, jit_compile=True, autograph=False)


def tokens_a_second(loop, cache, positions, steps, repeats):
    """Returns tokens a second from each position on; runs go over all positions in turn, to meet the same noise."""
    best = dict.fromkeys(positions, float("inf"))
    for run in range(repeats + 1):
        for position in positions:
            index = ops.convert_to_tensor(position, "int32")
            begun = time.perf_counter()
            ops.convert_to_numpy(loop(cache, index))
            if run > 0:  # the first one compiles
                best[position] = min(best[position], time.perf_counter() - begun)
    rows = ops.shape(keras.tree.flatten(cache)[0])[0]
    return {position: int(rows) * steps / seconds for position, seconds in best.items()}


def main():
    """Prints a row a kind of model."""
    given = parser().parse_args()
    length = max(given.positions) + given.steps
    rows = []
    for kind in KINDS:
        model = make_model(kind, given.layers, given.heads, length)
        cache = model.init_cache(given.batch, length)
        rates = tokens_a_second(make_loop(model, given.steps), cache, given.positions, given.steps, given.repeats)
        first, last = rates[given.positions[0]], rates[given.positions[-1]]
        per_token = cache_bytes(cache) / given.batch / length
        figures = [f"{rate:.0f}" for rate in rates.values()]
        rows.append([kind, *figures, f"{last / first:.2f}", f"{cache_bytes(cache) / 2**20:.2f}", f"{per_token:.0f}"])
        print(*rows[-1], sep="  ", flush=True)
    headings = ["attention", *(f"tokens/s at {position}" for position in given.positions)]
    headings += ["last to first", "cache MiB", "bytes a token of context"]
    if given.markdown:
        print(*(f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows)), sep="\n")


if __name__ == "__main__":
    main()
