"""Scoring a text: every token once, in nats, added up in float64."""

import functools
import math
import time

import numpy as np
from keras import ops

from tf_sparse_attention.data import evaluation_batches, evaluation_segments
from tf_sparse_attention.data.batches.evaluation import count_windows
from tf_sparse_attention.models import Model, StatefulModel

BATCHES_BETWEEN_FILES = 128


class Scorer(Model):
    """Nats of the targets of each window, and how many targets: what `predict` returns is float32 (windows, 2).

    Args:
        model: Language model, which knows its targets and answers with their nats.
    """

    def __init__(self, model):
        super().__init__(name="scorer")
        self.model = model
        self.built = True

    def call(self, inputs):
        inputs = dict(inputs)
        weights = inputs.pop("weights")
        nats = self.model(inputs, training=False)
        return ops.stack([ops.sum(ops.cast(nats, "float32") * weights, axis=-1), ops.sum(weights, axis=-1)], axis=-1)


def make_scorer(model, execution, batch_size):
    """Returns a compiled `Scorer`.

    Args:
        model: Language model; one with a memory reads the text as segments that go on.
        batch_size: Windows in a batch.
        execution: Arguments of `keras.Model.compile`, see `strategy.OneDevice.execution`.
    """
    scorer = Scorer(StatefulModel(model, batch_size) if model.backbone.memory_length else model)
    scorer.compile(**execution)
    return scorer


def score(
    scorer,
    store,
    devices,
    batch_size,
    sequence_length,
    packed,
    mask_rate=0.0,
    overlap=0,
    max_windows=None,
    callbacks=(),
    partial=None,
    progress=None,
):
    """Returns how well a model predicts a token store, as plain data.

    Args:
        scorer: Of `make_scorer`.
        store: `TokenStore`.
        devices: Of `strategy.choose`.
        batch_size: Windows in a batch, over all replicas.
        sequence_length: Tokens in a window; each begins without context, unless the model has a memory.
        packed: Whether documents in a window do not see each other.
        mask_rate: Share of the tokens that is hidden and scored; 0: all are, each after those before it.
        overlap: Tokens that a window has in common with the one before, there to be seen alone.
        max_windows: Only so many windows, evenly spread over the text; None: all.
        callbacks: Of Keras, for `predict`; one that stops it makes the result worthless.
        partial: `Partial`, to go on where an evaluation was killed; None: from the beginning.
        progress: Function of the number of batches to a `Progress`; None: nothing is shown.

    Returns:
        Dictionary with "nats", "tokens", "bytes", "words" (of a part of the text those of the whole, scaled),
        "windows", "seconds", "bits_per_byte", "perplexity" (per token) and "perplexity_per_word".
    """
    sizes = {"batch_size": batch_size, "sequence_length": sequence_length, "packed": packed, "max_windows": max_windows}
    num_windows = count_windows(store.num_tokens, sequence_length, overlap)
    windows = num_windows if max_windows is None else min(num_windows, max_windows)
    num_batches = -(-windows // batch_size)
    if isinstance(scorer.model, StatefulModel):
        # What it remembers is in no file: it reads from the beginning, in one go.
        _check_memory(overlap)
        scorer.model.reset_state()
        make, chunk, partial = functools.partial(_all_segments, store, sizes), num_batches, None
    else:
        make, chunk = functools.partial(_some_batches, store, sizes, mask_rate, overlap), BATCHES_BETWEEN_FILES
    shown = None if progress is None else progress(num_batches)
    sums = _sums(scorer, devices, make, num_batches, chunk, callbacks, partial, shown)
    tokens = int(sums["tokens"])
    whole = tokens == store.num_tokens
    num_bytes, num_words = (
        count if whole else count * tokens / store.num_tokens for count in (store.num_bytes, store.num_words)
    )
    result = figures(sums["nats"], tokens, num_bytes, num_words)
    return {**result, "windows": windows, "seconds": sums["seconds"]}


def _all_segments(store, sizes, first, count, **shard):
    return evaluation_segments(store, **sizes, **shard)


def _some_batches(store, sizes, mask_rate, overlap, first, count, **shard):
    options = {"mask_rate": mask_rate, "overlap": overlap, "first_batch": first, "num_batches": count}
    return evaluation_batches(store, **sizes, **options, **shard)


def _check_memory(overlap):
    if overlap:
        raise ValueError(
            "`overlap` must be 0 for a model with a memory, which sees the windows before anyway. "
            f"Received: overlap={overlap}."
        )


def _sums(scorer, devices, make, num_batches, chunk, callbacks, partial, shown):
    """Returns nats, tokens and seconds of all batches, a dictionary; `chunk` batches between two entries of a file."""
    first, sums = (0, None) if partial is None else partial.load()
    sums = {"nats": 0.0, "tokens": 0.0, "seconds": 0.0} if sums is None else sums
    callbacks = [*callbacks, *([] if shown is None else [shown])]
    while first < num_batches:
        begin, count = time.perf_counter(), min(chunk, num_batches - first)
        part = functools.partial(make, first=first, count=count)
        batches = devices.distribute(lambda part=part, **shard: part(**shard).map(_as_inputs))
        if shown is not None:
            shown.begin(first)
        result = scorer.predict(batches, steps=count, verbose=0, callbacks=callbacks)
        nats, tokens = np.sum(result, axis=0, dtype=np.float64).tolist()
        seconds = time.perf_counter() - begin
        sums = {name: sums[name] + value for name, value in zip(sums, (nats, tokens, seconds), strict=True)}
        first += count
        if partial is not None:
            partial.save(first, sums)
    return sums


def _as_inputs(inputs, targets, weights):
    return ({**inputs, "targets": targets, "weights": weights},)


def figures(nats, tokens, num_bytes, num_words):
    """Returns the sums and what follows from them.

    bits per byte = nats / (ln 2 bytes), perplexity = exp(nats / tokens), perplexity per word = exp(nats / words); the
    end of each document is a token that is predicted too, and no byte or word. A perplexity that no float holds, and
    one per word of a text without words, is None.
    """
    return {
        "nats": nats,
        "tokens": tokens,
        "bytes": num_bytes,
        "words": num_words,
        "bits_per_byte": nats / math.log(2) / num_bytes,
        "perplexity": _perplexity(nats, tokens),
        "perplexity_per_word": _perplexity(nats, num_words),
    }


def _perplexity(nats, count):
    return math.exp(nats / count) if 0 <= nats < 700 * count else None
