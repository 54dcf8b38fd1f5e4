"""Speed of speculative decoding: `python -m benchmarks.speculation [--positions 512 4096 8192]`.

Trains a small dense decoder on bytes of the Python library (about ten minutes on two cores), and a draft model with one
local layer. Then generates the last tokens of held-out texts of several lengths, with and without speculation. Drafts
come from the small model, or from the decoder itself with `Window | First` instead of dense attention ("self").

Columns: tokens per pass of the decoder; share of accepted drafts; and tokens per second relative to plain decoding of
the same text, from the best of several alternating runs. Reading the prompt is not timed.
"""

import argparse
import time

import keras

from benchmarks.decoding import as_markdown
from benchmarks.quantized import read_bytes, windows
from tf_sparse_attention import patterns
from tf_sparse_attention.generation import Speculative
from tf_sparse_attention.models import Backbone, LanguageModel, language_model_loss

LAYERS, WIDTH, HEADS = 4, 256, 4
PATTERN = patterns.Window(252) | patterns.First(4)


def make_model(pattern=None, layers=LAYERS, width=WIDTH):
    """Return a byte-level decoder. `pattern` None: dense."""
    keras.utils.set_random_seed(0)
    part = {"layer": "DenseAttention"} if pattern is None else {"layer": "SparseAttention", "pattern": pattern}
    part |= {"num_heads": HEADS, "key_dim": width // HEADS, "position": "rotary"}
    return LanguageModel(Backbone(258, layers, width, [part], intermediate_dim=4 * width))


def train(model, data, steps, longest):
    """Train with windows of 256 bytes, then with a few windows of the greatest length."""
    model.compile(keras.optimizers.Adam(2e-3, global_clipnorm=1.0), language_model_loss())
    for length, batch_size, number in ((256, 16, steps), (longest, 1, max(steps // 20, 1))):
        inputs, targets = windows(data, number * batch_size, seed=0, length=length)
        model.fit(inputs, targets, batch_size=batch_size, verbose=0)


def generate(model, prompt, length, strategy):
    """Return the seconds of generation after the prompt."""
    rows = model.generator.iterate([prompt], length, strategy, stop_token_ids=None, chunk_size=length)
    next(rows)  # the prompt is read
    begun = time.perf_counter()
    list(rows)
    return time.perf_counter() - begun


def count_passes(model, prompt, length, strategy):
    """Return the number of passes of `model`: a chunk of one token ends after one pass."""
    return sum(1 for _ in model.generator.iterate([prompt], length, strategy, stop_token_ids=None, chunk_size=1)) - 1


def compare(model, drafts, text, options):
    """Yield one row per kind of sampling, length and draft model."""
    for sampling in ("greedy", "random"):
        for length in options.positions:
            prompt = text[: length - options.tokens]
            strategies = {name: Speculative(draft, options.drafts, sampling) for name, draft in drafts.items()}
            strategies = {"": sampling, **strategies}
            best = dict.fromkeys(strategies, float("inf"))
            for run in range(options.repeats + 1):
                for name, strategy in strategies.items():
                    seconds = generate(model, prompt, length, strategy)
                    if run > 0:  # the first run compiles
                        best[name] = min(best[name], seconds)
            plain = options.tokens / best.pop("")
            for name, seconds in best.items():
                passes = count_passes(model, prompt, length, strategies[name])
                accepted = (options.tokens - passes) / (options.drafts * passes)
                speed = options.tokens / seconds
                counts = f"{options.tokens / passes:.2f}", f"{accepted:.2f}"
                yield sampling, length, name, *counts, f"{plain:.0f}", f"{speed:.0f}", f"{speed / plain:.2f}"


def main():
    """Print the rows, and a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, nargs="+", default=[512, 4096, 8192], help="lengths of the texts")
    parser.add_argument("--tokens", type=int, default=128, help="number of generated tokens at the end of each text")
    parser.add_argument("--drafts", type=int, default=4, help="number of draft tokens per pass")
    parser.add_argument("--steps", type=int, default=300, help="number of training batches")
    parser.add_argument("--repeats", type=int, default=3, help="number of runs; the best run counts")
    options = parser.parse_args()
    training, held = read_bytes()
    model, small = make_model(), make_model(patterns.Window(64), layers=1, width=WIDTH // 2)
    for each in (model, small):
        train(each, training, options.steps, max(options.positions))
    sparse = make_model(PATTERN)
    sparse.set_weights(model.get_weights())
    headings = "sampling", "position", "draft", "tokens per pass", "accepted", "plain tokens/s", "tokens/s", "ratio"
    text = held[: max(options.positions)].astype("int32") + 2
    rows = []
    for row in compare(model, {"small": small, "self": sparse}, text, options):
        rows.append([str(cell) for cell in row])
        print(*rows[-1], sep="  ", flush=True)
    print(as_markdown(headings, *rows))


if __name__ == "__main__":
    main()
