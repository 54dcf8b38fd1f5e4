"""KV-cache size and decoding speed of KerasHub decoders, dense and with a window in every layer.

python -m benchmarks.decoders [FAMILY ...] [--position 4096] [--window 256] [--markdown]

Each decoder has a few layers, grouped-query attention and random weights. `tsa.convert.replace_attention` converts it
to sparse attention. Both models decode greedily from a position on, in one compiled loop with KerasHub's
`call_with_cache`. Results are from the best of several alternating runs. For dense models with sliding windows,
KerasHub still caches all positions.
"""

import argparse
import inspect
import time

import keras
from keras import ops

from benchmarks.decoding import as_markdown, at_position, cache_bytes, compiled
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.layers import LocalAttention
from tf_sparse_attention.models.swapped_model import prompt_length_scope

VOCABULARY = 258
HEADS = {"num_query_heads": 8, "num_key_value_heads": 2}
# By family, the prefix of its class names: backbone arguments in addition to sizes.
FAMILIES = {
    "Llama": {},
    "Llama3": {},
    "Mistral": {"sliding_window": 1024},
    "Mixtral": {"sliding_window": 1024, "num_experts": 2, "top_k": 2},
    "Gemma": {"head_dim": 64, "use_sliding_window_attention": True, "sliding_window_size": 1024},
    "Gemma3": {"head_dim": 64, "image_size": 16, "vision_encoder": None, "sliding_window_size": 1024}
    | {"use_query_key_norm": True, "use_sliding_window_attention": True},
    "Qwen": {},
    "Qwen3": {"head_dim": 64, "sliding_window_size": None},
    "Phi3": {},
    "GptOss": {"head_dim": 64, "num_experts": 2, "top_k": 2, "sliding_window": 128},
}


def parser():
    """Return the argument parser."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("families", nargs="*", help=f"families from {', '.join(FAMILIES)}; default: all")
    arguments.add_argument("--position", type=int, default=4096, help="start position of decoding")
    arguments.add_argument("--window", type=int, default=256, help="window of the sparse model")
    arguments.add_argument("--layers", type=int, default=4, help="number of layers")
    arguments.add_argument("--width", type=int, default=512, help="hidden size")
    arguments.add_argument("--steps", type=int, default=64, help="number of decoded tokens")
    arguments.add_argument("--repeats", type=int, default=5, help="number of runs; the best run counts")
    arguments.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    return arguments


def make_decoder(family, layers, width):
    """Return a byte-level `CausalLM`."""
    import keras_hub

    keras.utils.set_random_seed(0)
    sizes = {"vocabulary_size": VOCABULARY, "num_layers": layers, "hidden_dim": width, "intermediate_dim": 2 * width}
    backbone = getattr(keras_hub.models, f"{family}Backbone")(**sizes, **HEADS, **FAMILIES[family])
    return getattr(keras_hub.models, f"{family}CausalLM")(backbone=backbone, preprocessor=None)


def empty_cache(model, length, names):
    """Return the empty cache of one row; `names` are further arguments of the model's `_build_cache`."""

    class Build(keras.Operation):
        def call(self, token_ids):
            return model._build_cache(token_ids, **dict.fromkeys(names))[1]

    with prompt_length_scope(0):
        specs = Build().symbolic_call(keras.KerasTensor((1, length), "int32"))
    return keras.tree.map_structure(lambda spec: ops.zeros(spec.shape, spec.dtype), specs)


def make_loop(model, steps):
    """Return a compiled function (cache, index) that decodes greedily and returns the last ids."""

    def loop(cache, index):
        def step(number, ids, cache):
            logits, _, cache = model.call_with_cache(ids, cache, index + number)
            return number + 1, ops.cast(ops.argmax(logits, axis=-1), "int32"), cache

        start = ops.zeros((), "int32"), ops.ones((1, 1), "int32"), at_position(cache, index)
        return ops.while_loop(lambda number, *_: number < steps, step, start)[1]

    return compiled(loop)


def measure(family, given):
    """Return [dense, sparse] cache bytes and [dense, sparse] tokens per second of a decoder family."""
    dense = make_decoder(family, given.layers, given.width)
    names = list(inspect.signature(dense._build_cache).parameters)[1:]

    def make_layer(attention):
        return LocalAttention(**arguments_of(attention, window=given.window))

    models = dense, replace_attention(dense, make_layer, print_fn=None)
    caches = [empty_cache(model, given.position + given.steps, names) for model in models]
    loops = [make_loop(model, given.steps) for model in models]
    best, index = [float("inf")] * 2, ops.convert_to_tensor(given.position, "int32")
    for run in range(given.repeats + 1):
        for number, (loop, cache) in enumerate(zip(loops, caches, strict=True)):
            begun = time.perf_counter()
            ops.convert_to_numpy(loop(cache, index))
            if run > 0:  # the first run compiles
                best[number] = min(best[number], time.perf_counter() - begun)
    return [cache_bytes(cache) for cache in caches], [given.steps / seconds for seconds in best]


def table(given):
    """Yield the headings, then one row per family."""
    yield ["decoder", "cache MiB, dense", "sparse", "ratio", "tokens/s, dense", "sparse", "ratio"]
    for family in given.families or FAMILIES:
        sizes, rates = measure(family, given)
        row = [*(f"{size / 2**20:.2f}" for size in sizes), f"{sizes[1] / sizes[0]:.3f}"]
        yield [family, *row, *(f"{rate:.0f}" for rate in rates), f"{rates[1] / rates[0]:.1f}"]


def main():
    """Print the table."""
    given = parser().parse_args()
    rows = []
    for row in table(given):
        rows.append(row)
        print(*row, sep="  ", flush=True)
    if given.markdown:
        print(as_markdown(*rows))


if __name__ == "__main__":
    main()
