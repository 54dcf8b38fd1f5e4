"""Loss of a trained model on held-out text: in total, by earlier occurrence of the context, and by position."""

import math
import os
from typing import Any

import keras
import numpy as np

from benchmarks.quality.held_out import open_held_out

NONE, NEAR, FAR = 0, 1, 2
NAMES = {NONE: "new", NEAR: "near", FAR: "far"}

QUARTERS = 4  # of a window


def measure(folder: str | os.PathLike, reach: int) -> dict[str, Any]:
    """Evaluate the model of a run on the test split.

    Args:
        folder: the run directory.
        reach: see `categories`.

    Returns:
        Dictionary: "loss" in nats per token, "bits_per_byte", "new", "near" and "far" (nats per token of each
        category), "share_far" (fraction of tokens), "quarters" (nats per token by quarter of the window), "weights"
        (number of trainable weights).
    """
    model, store, batches = open_held_out(folder)
    model.compile(loss=None)
    sums, counts = np.zeros((2, len(NAMES), QUARTERS))
    for inputs, targets, weights in batches:
        nats = keras.ops.convert_to_numpy(model.predict_on_batch({**inputs, "targets": targets}))
        weights, ids = weights.numpy(), inputs["token_ids"].numpy()
        kinds = categories(ids, inputs["segment_ids"].numpy(), reach)
        quarters = np.broadcast_to(np.arange(ids.shape[1]) * QUARTERS // ids.shape[1], ids.shape)
        np.add.at(sums, (kinds, quarters), nats * weights)
        np.add.at(counts, (kinds, quarters), weights)
    by_kind = {name: sums[kind].sum() / max(counts[kind].sum(), 1) for kind, name in NAMES.items()}
    return {
        "loss": sums.sum() / counts.sum(),
        "bits_per_byte": sums.sum() / math.log(2) / store.num_bytes,
        **by_kind,
        "share_far": counts[FAR].sum() / counts.sum(),
        "quarters": (sums.sum(axis=0) / np.maximum(counts.sum(axis=0), 1)).tolist(),
        "weights": sum(math.prod(weight.shape) for weight in model.trainable_weights),
    }


def categories(inputs: np.ndarray, documents: np.ndarray, reach: int) -> np.ndarray:
    """Return the category of each target by the last earlier occurrence of the two tokens before it.

    Long-range context helps most if the same context occurred before: Sun et al. 2021, "Do long-range language models
    actually use long-range context?"; Arora et al. 2023, "Zoology".

    Args:
        inputs: int (B, T), the token before each target.
        documents: int (B, T), the document of each token; occurrences in other documents do not count.
        reach: number of earlier positions that the local windows of all layers reach in total.

    Returns:
        Int (B, T): `NEAR` if the last occurrence is within the reach, `FAR` if it is farther away, `NONE` if the pair
        did not occur.
    """
    found = np.full(inputs.shape, NONE)
    for row, (ids, own) in enumerate(zip(inputs.tolist(), documents.tolist(), strict=True)):
        last: dict[tuple[int, int, int], int] = {}
        for at in range(1, len(ids)):
            if own[at - 1] != own[at]:
                continue
            context = own[at], ids[at - 1], ids[at]
            if context in last:
                found[row, at] = NEAR if at - last[context] <= reach else FAR
            last[context] = at
    return found
