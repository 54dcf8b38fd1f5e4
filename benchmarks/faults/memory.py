"""Memory over thousands of training steps, hundreds of texts and saves, and threads on a SavedModel.

`python -m benchmarks.faults.memory PART SCALE` runs one part in a separate process, `SCALE` times its full length (1:
all). It prints the resident memory in MB after each tenth of the part.
"""

import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from benchmarks.faults.lab import Lab, Trial, run_module
from benchmarks.memory import status

STRETCHES = 10
GROWTH = 0.03  # maximum relative growth from the end of the third stretch to the end of the last


def flat(lab: Lab, count: int) -> Iterator[Trial]:
    """Measure the memory of each part. `count` scales the length of the parts; 10 is the full length."""
    for part in PARTS:
        ended = run_module("benchmarks.faults.memory", part, str(count / 10))
        held = [float(word) for word in ended.said.split() if word.replace(".", "").isdigit()][-STRETCHES:]
        problem = str(ended) if ended.status != 0 or len(held) < STRETCHES else None
        if problem is None and held[-1] > held[2] * (1 + GROWTH):
            problem = f"grows: {', '.join(f'{each:.0f}' for each in held)} MB"
        yield Trial(f"{part}: {held[2]:.0f} MB, then {held[-1]:.0f} MB" if len(held) > 2 else part, problem)


def _model():
    import tf_sparse_attention as tsa
    from tf_sparse_attention.trainers.configs import demo
    from tf_sparse_attention.trainers.shared import components

    config, tokenizer = demo.get_config("tiny"), tsa.data.ByteTokenizer()
    return components.make_model(config, tokenizer.vocabulary_size), tokenizer


def _stretches(repeat: Callable[[int], None], scale: float, total: int) -> None:
    """Call `repeat` ten times with a number of repetitions, and print the memory after each call."""
    import gc

    for _ in range(STRETCHES):
        repeat(max(1, round(total * scale / STRETCHES)))
        gc.collect()
        print(f"{status('VmRSS') / 2**20:.1f}", flush=True)


def steps(scale: float) -> None:
    """Measure 3,000 training steps."""
    import keras
    import numpy as np

    import tf_sparse_attention as tsa

    model, _ = _model()
    model.compile(keras.optimizers.Adam(1e-3), loss=tsa.models.language_model_loss())
    ids = np.random.default_rng(0).integers(1, 200, (2, 65))
    model.train_on_batch(ids[:, :-1], ids[:, 1:])
    _stretches(lambda count: [model.train_on_batch(ids[:, :-1], ids[:, 1:]) for _ in range(count)], scale, 3000)


def generations(scale: float) -> None:
    """Measure the generation of 200 texts, with prompts of different lengths."""
    model, tokenizer = _model()
    numbers = iter(range(10**9))
    _stretches(
        lambda count: [model.generate("x" * (next(numbers) % 7), 32, "greedy", tokenizer) for _ in range(count)],
        scale,
        200,
    )


def saves(scale: float) -> None:
    """Measure 50 saves and loads of the model."""
    import keras

    model, _ = _model()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"

        def repeat(count):
            for _ in range(count):
                model.save(path)
                keras.models.load_model(path)

        _stretches(repeat, scale, 50)


def threads(scale: float) -> None:
    """Measure 16 threads that score texts with a SavedModel for three minutes."""
    import tensorflow as tf

    import tf_sparse_attention as tsa

    model, tokenizer = _model()
    with tempfile.TemporaryDirectory() as folder:
        tsa.export.export_language_model(model, folder, tokenizer, sequence_length=64, jit_compile=False)
        served = tf.saved_model.load(folder)
        score = served.signatures["score"]

        def ask(until):
            while time.monotonic() < until:
                score(text=tf.constant(["def main():", "x = 1"]))

        def repeat(seconds):
            until = time.monotonic() + seconds
            workers = [threading.Thread(target=ask, args=[until]) for _ in range(16)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

        _stretches(repeat, scale, 180)


PARTS = {part.__name__: part for part in (steps, generations, saves, threads)}

if __name__ == "__main__":
    PARTS[sys.argv[1]](float(sys.argv[2]))
