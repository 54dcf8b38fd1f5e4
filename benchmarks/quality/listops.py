"""ListOps of Long Range Arena, with bidirectional attention: `python -m benchmarks.quality.listops`.

The value of a sequence such as [MAX 4 [SM 3 9 1 ] 0 ], of 500 to 2,000 tokens, is one digit. Expressions have at most
ten operands and ten levels, including the digits. The settings are from Tay et al. 2021, "Long Range Arena", section
2.2; the task is from Nangia and Bowman 2018, "ListOps". The classifier is a Keras model with four blocks and mean
pooling. Each line of `listops.jsonl` is one model: its accuracy on 2,000 sequences of another seed, and the accuracy of
always predicting the most frequent value.
"""

import argparse
import functools
import itertools
import pathlib
from typing import Any

import keras
import numpy as np

from benchmarks.quality import results
from benchmarks.quality.cells import SEEDS
from tf_sparse_attention import layers

FILE = pathlib.Path(__file__).with_name("listops.jsonl")
OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(np.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
SYMBOLS = ["", *map(str, range(10)), *OPERATORS, "]"]  # the first is padding
MAX_DEPTH, MAX_OPERANDS, SHARE_OF_OPERATORS = 10, 10, 0.25
MIN_LENGTH, MAX_LENGTH = 500, 2000
HIDDEN_DIM, NUM_LAYERS = 64, 4
HEADS = {"num_heads": 2, "key_dim": 16}
LOCAL = {"window": 64, "position": "rotary"}
KINDS = ("local", "nearest", "clustered", "dense")
STEPS, ROWS, NUM_TESTED, LEARNING_RATE = 2000, 8, 2000, 1e-3


def expression(random: np.random.Generator, depth: int = 1) -> list[str]:
    """Return a random expression as symbols; a quarter of operands are nested expressions, up to nine levels deep."""
    symbols = [[*OPERATORS][random.integers(len(OPERATORS))]]
    for _ in range(random.integers(2, MAX_OPERANDS + 1)):
        inner = depth + 1 < MAX_DEPTH and random.random() < SHARE_OF_OPERATORS
        symbols += expression(random, depth + 1) if inner else [str(random.integers(10))]
    return [*symbols, "]"]


def value_of(symbols: list[str]) -> int:
    """Return the value of an expression, a digit."""
    stack: list[list[Any]] = [[None]]
    for symbol in symbols:
        if symbol in OPERATORS:
            stack.append([OPERATORS[symbol]])
        elif symbol == "]":
            operator, *values = stack.pop()
            stack[-1].append(operator(values))
        else:
            stack[-1].append(int(symbol))
    return stack[0][1]


def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return expressions of 501 to 1,999 symbols as ids (B, 2000), padded with 0, and their values (B,)."""
    ids, values = np.zeros((count, MAX_LENGTH), "int32"), np.zeros(count, "int32")
    for row in range(count):
        symbols: list[str] = []
        while not MIN_LENGTH < len(symbols) < MAX_LENGTH:
            symbols = expression(random)
        ids[row, : len(symbols)] = [SYMBOLS.index(symbol) for symbol in symbols]
        values[row] = value_of(symbols)
    return ids, values


def attention(kind: str) -> keras.layers.Layer:
    """Return four heads: local heads, or two local heads and two heads of another kind."""
    if kind == "local":
        return layers.LocalAttention(**{**HEADS, "num_heads": 4}, **LOCAL)
    others = {
        "nearest": lambda: layers.RoutingAttention(**HEADS, num_clusters=32, cluster_size=64, selection="nearest"),
        "clustered": lambda: layers.ClusteredAttention(**HEADS, num_clusters=64, top_k=32),
        "dense": lambda: layers.LocalAttention(**HEADS, window=MAX_LENGTH),
    }
    return layers.MixedAttention([layers.LocalAttention(**HEADS, **LOCAL), others[kind]()])


def build(kind: str) -> keras.Model:
    """Return a classifier of token ids (B, T) with ten classes."""
    token_ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(len(SYMBOLS), HIDDEN_DIM, mask_zero=True)(token_ids)
    for _ in range(NUM_LAYERS):
        x = layers.TransformerBlock(attention(kind), layers.FeedForward(2 * HIDDEN_DIM))(x)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.Model(token_ids, keras.layers.Dense(10)(x))


@functools.cache
def _held_out():
    return draw(np.random.default_rng(10**6), NUM_TESTED)


def train(kind: str, seed: int, steps: int = STEPS) -> dict[str, float]:
    """Train a model from a seed; return its "accuracy" and the accuracy of the "most_frequent" value."""
    keras.utils.set_random_seed(seed)
    model = build(kind)
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=LEARNING_RATE, warmup_steps=100)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(schedule), loss, metrics=["accuracy"], jit_compile=True)
    random = np.random.default_rng(seed)
    for _ in range(steps):
        model.train_on_batch(*draw(random, ROWS))
    ids, values = _held_out()
    found = model.evaluate(ids, values, batch_size=ROWS, verbose=0, return_dict=True)
    return {"accuracy": float(found["accuracy"]), "most_frequent": float(np.bincount(values).max() / len(values))}


def read() -> dict[tuple[str, int], dict[str, float]]:
    """Return {(kind, seed): result}."""
    return {(each["kind"], each["seed"]): each for each in results.read_lines(FILE)}


def table(found: dict[tuple[str, int], dict[str, float]]) -> str:
    """Return a Markdown table; missing results are "-"."""
    lines = ["| heads | seeds | accuracy |", "|---|---|---|"]
    for kind in KINDS:
        own = [found[kind, seed]["accuracy"] for seed in SEEDS if (kind, seed) in found]
        lines.append(f"| {kind} | {len(own)} | {', '.join(f'{share:.3f}' for share in own) or '-'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of heads (default: all)")
    parser.add_argument("--show", action="store_true", help="print the table, run nothing")
    options = parser.parse_args()
    if not options.show:
        keys = [{"kind": kind, "seed": seed} for kind, seed in itertools.product(options.kinds, SEEDS)]
        results.run_missing(keys, train, FILE)
    print(table(read()))


if __name__ == "__main__":
    main()
