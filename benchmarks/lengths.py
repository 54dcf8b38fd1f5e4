"""Cost of batches of many lengths: `KERAS_BACKEND=tensorflow python -m benchmarks.lengths`.

Trains and calls a small model with batches of twenty lengths, unpadded and padded to the lengths of
`tsa.generation.bucket_length`. Keras compiles a program for each length. The first pass over the batches includes
compilation, the second pass does not.
"""

import argparse
import time

import keras
import numpy as np

from benchmarks.decoding import as_markdown
from tf_sparse_attention.generation import bucket_length
from tf_sparse_attention.models import Backbone, LanguageModel, language_model_loss


def make_model():
    """Return a small byte-level model."""
    keras.utils.set_random_seed(0)
    part = {"layer": "LocalAttention", "num_heads": 4, "key_dim": 32, "window": 128, "position": "rotary"}
    model = LanguageModel(Backbone(258, 4, 128, [part], intermediate_dim=512))
    model.compile("adam", language_model_loss())
    return model


def make_batches(lengths):
    """Return pairs (token ids, weights of the targets) for lengths, unpadded and padded to `bucket_length`."""
    rng, plain, padded = np.random.default_rng(0), [], []
    for length in lengths:
        ids = rng.integers(2, 258, (8, length))
        size = bucket_length(length)
        plain.append((ids, np.ones(ids.shape)))
        padded.append((np.pad(ids, ((0, 0), (0, size - length))), np.tile(np.arange(size) < length, (8, 1))))
    return {"unpadded": plain, "padded to `bucket_length`": padded}


def seconds_of_passes(batches, is_training):
    """Return the seconds of two passes over the batches."""
    model, seconds = make_model(), []
    for _ in range(2):
        begun = time.perf_counter()
        for ids, weights in batches:
            if is_training:
                model.train_on_batch(ids, ids, weights.astype("float32"))
            else:
                model.predict_on_batch({"token_ids": ids, "padding_mask": weights.astype("bool")})
        seconds.append(time.perf_counter() - begun)
    return seconds


def main():
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, default=20, help="number of lengths, from 40 to 510")
    options = parser.parse_args()
    lengths = np.linspace(40, 510, options.lengths).astype(int)
    rows = []
    for is_training, method in ((True, "train_on_batch"), (False, "predict_on_batch")):
        for name, batches in make_batches(lengths).items():
            first, second = seconds_of_passes(batches, is_training)
            programs = len({ids.shape for ids, _ in batches})
            rows.append([f"`{method}`", name, str(programs), f"{first:.1f}", f"{second:.1f}"])
    print(as_markdown(["method", "lengths", "programs", "first pass s", "second pass s"], *rows))


if __name__ == "__main__":
    main()
