"""Decoding speed by position and by cache size, and the cost of prefill.

python -m benchmarks.decoding [--positions 512 8192] [--keys 64 256 1024] [--heads 8] [--markdown]

The models differ only in attention: local, local and routed, strided, selected blocks (which cache all keys and read
four blocks), and dense. Each model decodes greedily in one compiled loop from a start position. Results are from the
best of several alternating runs.

1. By position: "last to first" is the speed at the last position relative to the first. "prompt" is the time of a first
   `extend` relative to a forward call, for a prompt of 2048 tokens. "extend" is the time of 2048 tokens more, relative
   to what they cost as the end of a prompt of 4096 tokens. "int8 error" is the mean difference of the logits after a
   prompt of 2048 tokens with a cache in int8, relative to their standard deviation.
2. By size: for several numbers of keys per query, each sparse model is compared with a model of local attention whose
   cache has as many bytes.
"""

import argparse
import time

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.patterns.engine.kv_cache import NUM_TOKENS

KEYS = 256  # per query of a sparse head
PROMPT = 2048


def parser():
    """Return the argument parser."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--positions", type=int, nargs="+", default=[512, 2048, 8192], help="start positions")
    arguments.add_argument("--keys", type=int, nargs="+", default=[64, 256, 1024], help="numbers of keys per query")
    arguments.add_argument("--steps", type=int, default=64, help="number of decoded tokens")
    arguments.add_argument("--repeats", type=int, default=5, help="number of runs; the best run counts")
    arguments.add_argument("--layers", type=int, default=2, help="number of layers")
    arguments.add_argument("--heads", type=int, default=8, help="number of heads, of 64 channels each")
    arguments.add_argument("--batch", type=int, default=1, help="batch size")
    arguments.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    return arguments


def attention(kind, heads, length, keys=KEYS):
    """Return the attention parts of a kind of model, in the format of `Backbone`."""
    sizes = {"num_heads": heads, "key_dim": 64}
    local = {"layer": "LocalAttention", **sizes, "window": keys, "position": "rotary"}
    routing = {"layer": "RoutingAttention", "key_dim": 64, "num_clusters": 16, "cluster_size": keys}
    return {
        "local": [local],
        "local and routed": [{**local, "num_heads": heads // 2}, {**routing, "num_heads": heads - heads // 2}],
        "strided": [{"layer": "StridedAttention", **sizes, "stride": keys // 2, "heads": "merged"}],
        "selected": [{"layer": "BlockSelectedAttention", **sizes, "block_size": max(keys // 4, 1), "num_blocks": 4}],
        "dense": [{"layer": "DenseAttention", **sizes, "position": "rotary"}],
        "window of all": [{**local, "window": length}],
    }[kind]


KINDS = ("local", "local and routed", "strided", "selected", "dense")


def make_model(kind, layers, heads, length, keys=KEYS):
    """Return a byte-level language model."""
    keras.utils.set_random_seed(0)
    width = 64 * heads
    parts = attention(kind, heads, length, keys)
    return LanguageModel(Backbone(258, layers, width, parts, intermediate_dim=4 * width))


def cache_bytes(cache):
    """Return the bytes of all tensors of a cache."""
    sizes = {"float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
    leaves = keras.tree.flatten(cache)
    return sum(sizes[keras.backend.standardize_dtype(x.dtype)] * int(ops.prod(ops.shape(x))) for x in leaves)


def at_position(cache, position):
    """Return a cache, or a part of a cache, with its token counts set to `position`, an integer or int32 scalar."""
    if isinstance(cache, dict):
        return {
            name: ops.full_like(x, position) if name == NUM_TOKENS else at_position(x, position)
            for name, x in cache.items()
        }
    if isinstance(cache, (list, tuple)):
        return type(cache)(at_position(x, position) for x in cache)
    return cache


def make_loop(model, steps):
    """Return a compiled function (cache, index) that decodes greedily and returns the last ids.

    One program handles all positions. The loop does not return the cache, so each call starts with the same cache.
    """

    def loop(cache, index):
        def step(number, ids, cache):
            logits, cache = model.extend(ids, cache, index=index + number)
            return number + 1, ops.cast(ops.argmax(logits, axis=-1), "int32"), cache

        rows = ops.shape(keras.tree.flatten(cache)[0])[0]
        start = ops.zeros((), "int32"), ops.ones((rows, 1), "int32"), at_position(cache, index)
        return ops.while_loop(lambda number, *_: number < steps, step, start)[1]

    return compiled(loop)


def compiled(function):
    """Return a function as one compiled program."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


def tokens_a_second(loop, cache, positions, steps, repeats):
    """Return tokens per second by start position; each run covers all positions, so that noise is similar."""
    best = dict.fromkeys(positions, float("inf"))
    for run in range(repeats + 1):
        for position in positions:
            index = ops.convert_to_tensor(position, "int32")
            begun = time.perf_counter()
            ops.convert_to_numpy(loop(cache, index))
            if run > 0:  # the first run compiles
                best[position] = min(best[position], time.perf_counter() - begun)
    rows = ops.shape(keras.tree.flatten(cache)[0])[0]
    return {position: int(rows) * steps / seconds for position, seconds in best.items()}


def cost_of_prompt(model, repeats, length):
    """Return the time of a first `extend` divided by that of a forward call, each the best of alternating runs."""
    ids = ops.convert_to_tensor(np.random.default_rng(0).integers(2, 258, (1, length)), "int32")
    empty = model.init_cache(1, length)

    # Compute only what generation uses: the last logits and the whole cache.
    programs = {
        "call": compiled(lambda ids: model.logits(model.backbone(ids, training=False)[:, -1])),
        "prefill": compiled(lambda ids: _last(model, *model.backbone.extend(ids, empty, index=0))),
    }
    best = dict.fromkeys(programs, float("inf"))
    for run in range(repeats + 1):
        for name, program in programs.items():
            begun = time.perf_counter()
            ops.convert_to_numpy(keras.tree.flatten(program(ids))[0])
            if run > 0:
                best[name] = min(best[name], time.perf_counter() - begun)
    return best["prefill"] / best["call"]


def cost_of_more(model, repeats, length):
    """Return the time of `extend` by `length` tokens after as many, divided by what they add to the time of a call."""
    ids = ops.convert_to_tensor(np.random.default_rng(0).integers(2, 258, (1, 2 * length)), "int32")
    empty = model.init_cache(1, 2 * length)

    def read(ids, cache, index):
        return _last(model, *model.backbone.extend(ids, cache, index=index))

    first = compiled(lambda ids: read(ids, empty, 0))
    more = compiled(lambda ids, cache: read(ids, cache, None))
    _, cache = first(ids[:, :length])
    programs = {
        "half": lambda: first(ids[:, :length]),
        "whole": lambda: first(ids),
        "more": lambda: more(ids[:, length:], cache),
    }
    best = dict.fromkeys(programs, float("inf"))
    for run in range(repeats + 1):
        for name, program in programs.items():
            begun = time.perf_counter()
            ops.convert_to_numpy(keras.tree.flatten(program())[0])
            if run > 0:
                best[name] = min(best[name], time.perf_counter() - begun)
    return best["more"] / (best["whole"] - best["half"])


def error_of_int8(model, length):
    """Return the mean difference of logits with a cache in int8, relative to the standard deviation of the logits."""
    ids = ops.convert_to_tensor(np.random.default_rng(0).integers(2, 258, (1, length)), "int32")
    logits = []
    for dtype in (None, "int8"):
        _, cache = model.prefill(ids[:, :-8], model.init_cache(1, length, dtype=dtype))
        logits.append(ops.convert_to_numpy(model.extend(ids[:, -8:], cache)[0]))
    return np.abs(logits[0] - logits[1]).mean() / logits[0].std()


def _last(model, x, cache):
    return model.logits(x[:, -1]), cache


def by_position(given, prompt=PROMPT):
    """Yield the headings, then one row per kind of model."""
    length = max(given.positions) + given.steps
    headings = ["attention", *(f"tokens/s at {position}" for position in given.positions)]
    yield [
        *headings,
        "last to first",
        "cache MiB",
        "bytes per token of context",
        "prompt",
        "extend",
        "int8 MiB",
        "int8 error",
    ]
    for kind in KINDS:
        model = make_model(kind, given.layers, given.heads, length)
        cache = model.init_cache(given.batch, length)
        rates = tokens_a_second(make_loop(model, given.steps), cache, given.positions, given.steps, given.repeats)
        first, last = rates[given.positions[0]], rates[given.positions[-1]]
        size = cache_bytes(cache)
        figures = [f"{rate:.0f}" for rate in rates.values()]
        figures += [f"{last / first:.2f}", f"{size / 2**20:.2f}", f"{size / given.batch / length:.0f}"]
        quantized = cache_bytes(model.init_cache(given.batch, length, dtype="int8")) / 2**20
        figures += [f"{cost(model, given.repeats, prompt):.2f}" for cost in (cost_of_prompt, cost_of_more)]
        yield [kind, *figures, f"{quantized:.2f}", f"{error_of_int8(model, prompt):.4f}"]


def by_size(given):
    """Yield the headings, then one row per number of keys and kind of model."""
    yield ["keys", "attention", "cache MiB", "tokens/s", "tokens/s, window with as many bytes", "ratio"]
    position = max(given.positions)
    for keys in given.keys:
        for kind in ("local", "local and routed"):
            model = make_model(kind, given.layers, given.heads, position, keys)
            cache = model.init_cache(given.batch, position + given.steps)
            size = cache_bytes(cache)
            places = size // (given.batch * given.layers * given.heads * 2 * 64 * 4)
            dense = make_model("window of all", given.layers, given.heads, max(places, 1))
            rates = []
            for one, kept in ((model, cache), (dense, dense.init_cache(given.batch, position + given.steps))):
                loop = make_loop(one, given.steps)
                rates += tokens_a_second(loop, kept, [position], given.steps, given.repeats).values()
            own, other = rates
            yield [str(keys), kind, f"{size / 2**20:.2f}", f"{own:.0f}", f"{other:.0f}", f"{own / other:.2f}"]


def as_markdown(headings, *rows):
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows))


def main():
    """Print both tables."""
    given = parser().parse_args()
    tables = []
    for table in (by_position, by_size):
        tables.append([])
        for row in table(given):
            tables[-1].append(row)
            print(*row, sep="  ", flush=True)
    if given.markdown:
        print(*(as_markdown(*rows) for rows in tables), sep="\n\n")


if __name__ == "__main__":
    main()
