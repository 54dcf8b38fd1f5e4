"""Types of heads on images with equal weights and training time: `python -m benchmarks.images --path=NAME.npz`.

Trains the variants of `trainers/configs/images.py` on the images `x_train` of the file, half of them mirrored, for a
fixed number of seconds each, without compilation time. Prints the bits per dimension of held-out images, where each
byte is predicted once from all bytes before it. The learning rate follows a cosine over time, so each variant
completes its schedule. All variants of a seed see the same images in the same order with the same mirroring; variants
with faster steps see more images. All variants are evaluated on all held-out images in the order of the file. On a GPU:
`KERAS_BACKEND=jax python -m benchmarks.images --batch_size=20 --dtype=mixed_bfloat16`, which does not need TensorFlow.
Finished runs in the file of results are not repeated.
"""

import argparse
import itertools
import json
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.data.sources.array_file import ArraySpec, read_arrays
from tf_sparse_attention.trainers.configs import images
from tf_sparse_attention.trainers.shared import components

ROUND = 25  # steps per update of the learning rate
FORMS = {name: ArraySpec("uint8", "NHWC", is_needed=name == "x_train") for name in ("x_train", "x_heldout", "x_test")}


class Timed(keras.callbacks.Callback):
    """Callback that sets the learning rate by elapsed time, and ends training after a number of seconds.

    Args:
        peak: the highest learning rate.
        warmup_steps: number of steps of linear warmup.
        seconds: training time, without the first round, which compiles.
    """

    def __init__(self, peak: float, warmup_steps: int, seconds: float) -> None:
        super().__init__()
        self.peak, self.warmup_steps, self.seconds = peak, warmup_steps, seconds
        self.started, self.steps, self.taken = math.inf, 0, 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the learning rate of the round."""
        if epoch == 1:
            self.started = time.perf_counter()
        passed = max(time.perf_counter() - self.started, 0.0) if epoch else 0.0
        share = min(passed / self.seconds, 1.0)
        warm = min((self.steps + ROUND) / self.warmup_steps, 1.0)
        self.model.optimizer.learning_rate = self.peak * warm * (1 + math.cos(math.pi * share)) / 2

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the steps of the round, and stop when the time is over."""
        self.steps += ROUND
        self.taken = time.perf_counter() - self.started if epoch else 0.0
        self.model.stop_training = self.taken >= self.seconds


def endless(pictures: np.ndarray, codec: Any, batch_size: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yield an unbounded stream of batches: each image once per epoch, mirrored with probability 1/2.

    The order and mirroring depend only on the seed, not on other random draws such as dropout.

    Args:
        pictures: uint8 (N, H, W, C).
        codec: the `ImageCodec` of this image shape.
        batch_size: number of images per batch.
        seed: an integer.

    Yields:
        Results of `in_and_out` for ids (batch_size, H * W * C).
    """
    draw = np.random.default_rng(seed)
    order = itertools.chain.from_iterable(draw.permutation(len(pictures)) for _ in itertools.count())
    while True:
        chosen = pictures[list(itertools.islice(order, batch_size))]
        flipped = draw.random((batch_size, 1, 1, 1)) < 0.5
        yield in_and_out(codec.encode(np.where(flipped, chosen[:, :, ::-1], chosen)))


def in_and_out(ids: np.ndarray) -> tuple[Any, Any]:
    """Return inputs {"token_ids": (B, T)} and targets (B, T) of a language model for ids (B, T)."""
    return {"token_ids": np.pad(ids[:, :-1], [(0, 0), (1, 0)])}, ids


def train(variant: str, seed: int, data: dict[str, np.ndarray], options: argparse.Namespace) -> dict[str, Any]:
    """Train a variant from a seed and return its results."""
    config = images.get_config(variant)
    config.seed, config.train.dtype = seed, options.dtype
    codec = tsa.data.ImageCodec(*data["train"].shape[1:])
    model: Any = components.make_model(config, codec.vocabulary_size)
    settings = components.set_values(config.optimizer)
    name, peak, warmup_steps = (settings.pop(key) for key in ("name", "learning_rate", "warmup_steps"))
    settings.pop("schedule")
    model.compile(components.OPTIMIZERS[name](peak, **settings), tsa.models.language_model_loss())
    timed = Timed(peak, warmup_steps, options.seconds)
    batches = endless(data["train"], codec, options.batch_size, seed)
    many = 10**9
    history = model.fit(
        batches, steps_per_epoch=ROUND, epochs=many, callbacks=[timed], shuffle=False, verbose=0
    ).history["loss"]
    inputs, targets = in_and_out(codec.encode(data["other"]))
    nats = model.evaluate(inputs, targets, batch_size=options.batch_size, verbose=0)
    return {
        "variant": variant,
        "seed": seed,
        "bits_per_dim": nats / math.log(2),
        "training_bits": statistics.mean(history[-4:]) / math.log(2),
        "weights": model.count_params(),
        "steps": timed.steps,
        "seconds": round(timed.taken, 1),
        "batch_size": options.batch_size,
        "dtype": options.dtype,
        "device": device_kind(),
    }


def device_kind() -> str:
    """Return the name of the device on JAX, and of the backend on other backends."""
    if keras.backend.backend() != "jax":
        return keras.backend.backend()
    import jax

    return jax.devices()[0].device_kind


def read_images(path: str) -> dict[str, np.ndarray]:
    """Return the images of a file, uint8 (N, H, W, C): "train" is `x_train`, "other" is `x_heldout` or else `x_test`.

    Raises:
        ValueError: If the file is damaged, or if an array is missing or has another shape or dtype.
    """
    arrays = read_arrays(path, FORMS)
    other = next((name for name in ("x_heldout", "x_test") if name in arrays), None)
    if other is None:
        raise ValueError(f"`path` must have an array x_heldout or x_test. Received: {path} without any.")
    return {"train": arrays["x_train"], "other": arrays[other]}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table with a row per variant: mean over seeds, with their range."""
    lines = ["| heads | bits per dimension | of training | weights | steps | seconds | seeds |", "|---" * 7 + "|"]
    for variant in images.VARIANTS:
        found = [row for row in rows if row["variant"] == variant]
        if not found:
            continue
        bits = [row["bits_per_dim"] for row in found]
        mean = {name: statistics.mean(row[name] for row in found) for name in ("training_bits", "steps", "seconds")}
        score = f"{statistics.mean(bits):.3f} ({max(bits) - min(bits):.3f})"
        cells = [variant, score, f"{mean['training_bits']:.3f}", f"{found[0]['weights']:,}", f"{mean['steps']:.0f}"]
        lines.append("| " + " | ".join([*cells, f"{mean['seconds']:.0f}", str(len(found))]) + " |")
    return "\n".join(lines)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--path", required=True, help="a file NAME.npz of arrays x_train and x_heldout or x_test")
    parser.add_argument("--seconds", type=float, default=3600, help="training time per variant (default: %(default)s)")
    parser.add_argument("--variants", nargs="+", choices=list(images.VARIANTS), default=list(images.VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="default: %(default)s")
    parser.add_argument("--batch_size", type=int, default=2, help="images per step (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="a dtype policy of Keras (default: %(default)s)")
    parser.add_argument("--results", help="a file of JSON lines; runs in it are not repeated")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Train variants without results, and print the table."""
    options = parse(argv)
    data, file = read_images(options.path), options.results and pathlib.Path(options.results)
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []
    for seed, variant in itertools.product(options.seeds, options.variants):
        if any((row["seed"], row["variant"]) == (seed, variant) for row in rows):
            continue
        rows.append(train(variant, seed, data, options))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        if file:
            with file.open("a") as lines:
                lines.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
