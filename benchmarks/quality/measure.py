"""The loss of a trained model on held-out text, as a whole, by what was said before and by the place in the window."""

import math
import os
from typing import Any

import keras
import numpy as np

from benchmarks.quality import contexts
from benchmarks.quality.held_out import open_held_out

QUARTERS = 4


def measure(folder: str | os.PathLike, reach: int, split: str = "test") -> dict[str, Any]:
    """Returns the nats a token of a run's model on every token of a split.

    Args:
        folder: the work folder of the run.
        reach: as in `contexts.categories`.
        split: of the text.

    Returns:
        Dictionary: "loss" in nats a token, "bits_per_byte", "new", "near" and "far" (nats of the tokens of a category),
        "share_far" (of the tokens), "quarters" (nats by quarter of the window), "weights" (trainable numbers).
    """
    model, store, batches = open_held_out(folder, split)
    model.compile(loss=None)
    sums, counts = np.zeros((2, len(contexts.NAMES), QUARTERS))
    for inputs, targets, weights in batches:
        nats = keras.ops.convert_to_numpy(model.predict_on_batch({**inputs, "targets": targets}))
        weights, ids = weights.numpy(), inputs["token_ids"].numpy()
        kinds = contexts.categories(ids, inputs["segment_ids"].numpy(), reach)
        places = np.broadcast_to(np.arange(ids.shape[1]) * QUARTERS // ids.shape[1], ids.shape)
        np.add.at(sums, (kinds, places), nats * weights)
        np.add.at(counts, (kinds, places), weights)
    by_kind = {name: sums[kind].sum() / max(counts[kind].sum(), 1) for kind, name in contexts.NAMES.items()}
    return {
        "loss": sums.sum() / counts.sum(),
        "bits_per_byte": sums.sum() / math.log(2) / store.num_bytes,
        **by_kind,
        "share_far": counts[contexts.FAR].sum() / counts.sum(),
        "quarters": (sums.sum(axis=0) / np.maximum(counts.sum(axis=0), 1)).tolist(),
        "weights": sum(math.prod(weight.shape) for weight in model.trainable_weights),
    }
