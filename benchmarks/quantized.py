"""Quality of quantized weights: `python -m benchmarks.quantized`.

Trains the tiny decoders of `tsa.models.DECODER_PRESETS` (grouped-query heads, QK norm, sinks) on bytes of the Python
library, in a few minutes on two cores. Then quantizes them with Keras's `quantize` to int8, int4 and float8. Prints the
bits per byte of held-out files, the median error of logits relative to their standard deviation, and how often the most
likely byte equals that of float32.
"""

import argparse
import pathlib
import sysconfig
import warnings

import keras
import numpy as np

from tf_sparse_attention import models

LENGTH, BATCH = 256, 16
MODES = ("int8", "int4", "float8")
NAMES = ("gemma3_tiny", "gpt_oss_tiny")


def read_bytes():
    """Return training bytes and held-out bytes of the Python library's modules, two uint8 arrays."""
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    parts = [
        b"".join(path.read_bytes() for path in files if (path.stem[-1] in "aeiou") == held) for held in (False, True)
    ]
    return [np.frombuffer(part, "uint8") for part in parts]


def windows(data, number, seed, length=LENGTH):
    """Return inputs and targets for random windows of bytes: byte b has id b + 2, and inputs start with id 0."""
    starts = np.random.default_rng(seed).integers(len(data) - length, size=number)
    targets = data[starts[:, None] + np.arange(length)].astype("int32") + 2
    return np.pad(targets[:, :-1], ((0, 0), (1, 0))), targets


def train(name, data, steps):
    """Return a model of a preset, trained for a number of batches."""
    keras.utils.set_random_seed(0)
    model = models.LanguageModel.from_preset(name, 258, tie_embeddings=True, use_output_bias=False, seed=0)
    model.compile(keras.optimizers.Adam(3e-3, global_clipnorm=1.0), models.language_model_loss())
    model.fit(*windows(data, steps * BATCH, seed=0), batch_size=BATCH, verbose=0)
    return model


def score(model, inputs, targets):
    """Return bits per byte and logits."""
    logits = np.asarray(model.predict(inputs, batch_size=BATCH, verbose=0))
    logs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    return -np.mean(np.take_along_axis(logs, targets[..., None], -1)) / np.log(2), logits


def copy_of(model):
    """Return a model with the same config and weights."""
    other = type(model).from_config(model.get_config())
    other.set_weights(model.get_weights())
    return other


def main():
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=NAMES, help="presets")
    parser.add_argument("--steps", type=int, default=400, help="number of training batches")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*`quantize`|Invalid quantization mode")
    training, held = read_bytes()
    pairs = windows(held, 64, seed=1)
    print("| model | kernels | bits per byte | error of logits | same most likely byte |\n|---|---|---|---|---|")
    for name in options.names:
        model = train(name, training, options.steps)
        bits, exact = score(model, *pairs)
        print(f"| `{name}` | float32 | {bits:.3f} | 0 | 1 |", flush=True)
        for mode in MODES:
            other = copy_of(model)
            other.quantize(mode)
            bits, logits = score(other, *pairs)
            error = np.median(np.abs(logits - exact)) / exact.std()
            same = np.mean(logits.argmax(-1) == exact.argmax(-1))
            print(f"| `{name}` | {mode} | {bits:.3f} | {error:.4f} | {same:.3f} |", flush=True)


if __name__ == "__main__":
    main()
