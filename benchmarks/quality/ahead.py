"""Effect of leaked future tokens on the loss: `python -m benchmarks.quality.ahead --workdir=runs/quality/...`.

In the usual evaluation, one pass over a window, the published selection ("top_k") assigns tokens to clusters using all
tokens, including later ones. This program also evaluates some tokens of each window as in generation: in a separate
pass with all later tokens masked. Prints both losses of these tokens in nats per token, and their difference with its
standard error over windows. Both losses are equal for a causal model.
"""

import argparse
import os
from typing import Any

import keras
import numpy as np

from benchmarks.quality.held_out import open_held_out
from benchmarks.quality.run_folder import run_folder

NUM_SCORED = 32  # random tokens per window, from its second half


def losses_of(model: Any, inputs: dict[str, np.ndarray], targets: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the loss in nats of the targets at some positions of one window.

    Args:
        model: a `LanguageModel`.
        inputs: inputs of the model without padding mask and targets, int (T,) each: tokens and their documents.
        targets: int (T,).
        positions: int (P,), positions of the targets.

    Returns:
        Float (2, P): losses in one pass over the whole window, and losses with all later tokens masked.
    """
    count, length = len(positions), len(targets)
    given = {name: np.tile(x, (count, 1)) for name, x in {**inputs, "targets": targets}.items()}
    nats = []
    for known in (np.ones((count, length), bool), np.arange(length) <= positions[:, None]):
        found = model.predict_on_batch({**given, "padding_mask": known})
        nats.append(keras.ops.convert_to_numpy(found)[np.arange(count), positions])
    return np.stack(nats)


def look_ahead(folder: str | os.PathLike, num_windows: int) -> dict[str, Any]:
    """Measure the loss of a trained model with and without later tokens.

    Args:
        folder: the run directory.
        num_windows: number of evenly spaced windows of the test split; incomplete windows are skipped.

    Returns:
        Dictionary: "one_pass" and "from_the_past", mean nats, "difference", "standard_error" of the difference over
        windows, and "tokens".
    """
    model, _, batches = open_held_out(folder, num_windows)
    model.compile(loss=None)
    random, found = np.random.default_rng(0), []
    for inputs, targets, weights in batches:
        length = targets.shape[1]
        for row in np.flatnonzero(weights.numpy().all(axis=1)):
            positions = np.sort(random.choice(np.arange(length // 2, length), NUM_SCORED, replace=False))
            own = {name: x.numpy()[row] for name, x in inputs.items()}
            found.append(losses_of(model, own, targets.numpy()[row], positions))
    means = np.mean(found, axis=-1)  # (windows, 2)
    apart = means[:, 1] - means[:, 0]
    return {
        "one_pass": means[:, 0].mean(),
        "from_the_past": means[:, 1].mean(),
        "difference": apart.mean(),
        "standard_error": apart.std(ddof=1) / np.sqrt(len(apart)),
        "tokens": len(found) * NUM_SCORED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True, type=run_folder, nargs="+", help="run directories")
    parser.add_argument("--windows", type=int, default=64, help="windows of the test split (default: %(default)s)")
    options = parser.parse_args()
    for folder in options.workdir:
        found = look_ahead(folder, options.windows)
        print(
            f"{folder}: {found['one_pass']:.4f} in one pass, {found['from_the_past']:.4f} from the past only, ", end=""
        )
        print(f"{found['difference']:+.4f} ({found['standard_error']:.4f}), {found['tokens']} tokens", flush=True)


if __name__ == "__main__":
    main()
