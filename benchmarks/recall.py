"""Recall beyond the local window: `python -m benchmarks.recall`.

A sequence has 64 pairs (key, value) with 16 random keys; each key has one random value throughout the sequence. For a
repeated key, the model must predict its value. The score counts only keys whose last occurrence is farther back than
the total reach of all layers' windows. Local attention cannot exceed chance, 1/16; with heads that route to the nearest
centroid, the model can find the pair.

Trains models from three seeds, in about a minute on one core each: with local heads, and with local heads combined with
routed heads, selected blocks, native sparse attention or dense heads. Prints the accuracies; `--plot recall.png` draws
them by training step.
"""

import argparse
import json
import sys
from typing import NamedTuple

import keras
import numpy as np

from tf_sparse_attention import models

NUM_KEYS = 16
NUM_PAIRS = 64
NUM_LAYERS = 2
WINDOW = 8
CHANCE = 1 / NUM_KEYS
LOCAL = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 16, "window": WINDOW, "position": "relative"}
ROUTED = {
    "layer": "RoutingAttention",
    "num_heads": 2,
    "key_dim": 16,
    "num_clusters": 4,
    "cluster_size": 32,  # sequence length / number of clusters, as published
    "selection": "nearest",
    "ema_decay": 0.99,  # centroids adapt within 100 steps, for short training
}
SIZES = {"num_heads": 2, "key_dim": 16, "block_size": 8}
SELECTED = {"layer": "BlockSelectedAttention", **SIZES, "num_blocks": 4}  # as many keys per query as in a cluster
NATIVE = {"layer": "NativeSparseAttention", **SIZES, "num_blocks": 4, "window": WINDOW}
PATTERNS = {
    "local": [{**LOCAL, "num_heads": 4}],
    "local + nearest": [LOCAL, ROUTED],
    "local + selected": [LOCAL, SELECTED],
    "local + native": [LOCAL, NATIVE],
    "local + dense": [LOCAL, {**LOCAL, "position": None, "window": 2 * NUM_PAIRS}],
}


class Task(NamedTuple):
    """Training or test sequences, all arrays int32 (num_sequences, 2 * NUM_PAIRS).

    Attributes:
        token_ids: alternating keys 1 .. 16 and values 17 .. 32.
        targets: the value of each repeated key; 0, which is not scored, elsewhere.
        distances: distance of each repeated key to its last occurrence; 0 elsewhere.
    """

    token_ids: np.ndarray
    targets: np.ndarray
    distances: np.ndarray


def draw(num_sequences, seed):
    """Return a `Task` of random sequences."""
    random = np.random.default_rng(seed)
    keys = random.integers(NUM_KEYS, size=(num_sequences, NUM_PAIRS))
    values = np.take_along_axis(random.integers(NUM_KEYS, size=(num_sequences, NUM_KEYS)), keys, axis=1)
    earlier = np.tril(keys[:, :, None] == keys[:, None, :], -1)
    last = NUM_PAIRS - 1 - np.argmax(earlier[:, :, ::-1], axis=2)  # the last pair with the same key, if any
    apart = np.where(earlier.any(2), 2 * (np.arange(NUM_PAIRS) - last), 0)
    nothing = np.zeros_like(keys)

    def interleaved(at_keys, at_values):
        return np.stack([at_keys, at_values], axis=-1).reshape(num_sequences, -1).astype("int32")

    named = values + 1 + NUM_KEYS
    return Task(
        interleaved(keys + 1, named), interleaved(np.where(apart > 0, named, 0), nothing), interleaved(apart, nothing)
    )


def build(pattern, seed):
    """Return a language model of two layers with the attention of a pattern."""
    backbone = models.Backbone(
        vocabulary_size=1 + 2 * NUM_KEYS,
        num_layers=NUM_LAYERS,
        hidden_dim=64,
        attention=PATTERNS[pattern],
        intermediate_dim=128,
        seed=seed,
    )
    return models.LanguageModel(backbone)


def accuracy(model, task):
    """Return the accuracy of the model for keys beyond the reach of all windows."""
    guesses = np.argmax(model.predict(task.token_ids, batch_size=64, verbose=0), axis=-1)
    far = task.distances > NUM_LAYERS * WINDOW
    return float(np.mean(guesses[far] == task.targets[far]))


def train(pattern, seed, num_steps=1500, batch_size=16, learning_rate=3e-3, every=250, jit_compile="auto"):
    """Train a model from a seed and return its curve, [(step, accuracy)], measured every `every` steps."""
    keras.utils.set_random_seed(seed)
    model = build(pattern, seed)
    schedule = keras.optimizers.schedules.CosineDecay(0.0, num_steps, warmup_target=learning_rate, warmup_steps=100)
    model.compile(keras.optimizers.Adam(schedule), loss=models.language_model_loss(), jit_compile=jit_compile)
    held_out = draw(64, seed=[seed, 1])
    examples = draw(num_steps * batch_size, seed=[seed, 0])
    curve = [(0, accuracy(model, held_out))]
    for first in range(0, num_steps, every):
        part = slice(first * batch_size, (first + every) * batch_size)
        model.fit(examples.token_ids[part], examples.targets[part], batch_size=batch_size, shuffle=False, verbose=0)
        curve.append((min(first + every, num_steps), accuracy(model, held_out)))
    return curve


def plot(curves, path):
    """Plot {pattern: {seed: curve}}: accuracy by training step."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for color, (pattern, by_seed) in zip(
        ("#2a6f97", "#e07a1f", "#5b8c5a", "#8d6a9f", "#888888"), curves.items(), strict=False
    ):
        for number, curve in enumerate(by_seed.values()):
            axis.plot(*zip(*curve, strict=True), color=color, linewidth=1.8, label=None if number else pattern)
    axis.axhline(CHANCE, color="black", linewidth=0.8, linestyle=":", label="chance")
    axis.set(xlabel="training steps of 16 sequences", ylabel="recall beyond the window", ylim=(0, 1.02))
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(argv=None):
    """Print the accuracies and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--patterns", nargs="+", choices=list(PATTERNS), default=list(PATTERNS), help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=1500, help="training steps (default: %(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="draw the accuracies to a file")
    parser.add_argument("--json", metavar="FILE", help="write the accuracies to a JSON file")
    options = parser.parse_args(argv)
    curves = {}
    for pattern in options.patterns:
        for seed in options.seeds:
            curve = train(pattern, seed, options.steps)
            curves.setdefault(pattern, {})[seed] = curve
            print(f"{pattern}, seed {seed}: " + ", ".join(f"{value:.3f} after {step}" for step, value in curve[1:]))
    for pattern, by_seed in curves.items():
        final = [curve[-1][1] for curve in by_seed.values()]
        print(f"{pattern}: {min(final):.3f} to {max(final):.3f} of {len(final)} seeds; chance is {CHANCE:.3f}")
    if options.plot:
        plot(curves, options.plot)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(curves, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
