"""Scoring a text: every token once, in nats, added up in float64."""

import functools
import math
import time

import numpy as np
from keras import ops

from tf_sparse_attention.data import evaluation_batches, evaluation_segments
from tf_sparse_attention.models import Model, StatefulModel


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


def score(scorer, store, devices, batch_size, sequence_length, packed, mask_rate=0.0, max_windows=None, callbacks=None):
    """Returns how well a model predicts a token store, as plain data.

    Args:
        scorer: Of `make_scorer`.
        store: `TokenStore`.
        devices: Of `strategy.choose`.
        batch_size: Windows in a batch, over all replicas.
        sequence_length: Tokens in a window; each begins without context, unless the model has a memory.
        packed: Whether documents in a window do not see each other.
        mask_rate: Share of the tokens that is hidden and scored; 0: all are, each after those before it.
        max_windows: Only so many windows, evenly spread over the text; None: all.
        callbacks: Of Keras, for `predict`; one that stops it makes the result worthless.

    Returns:
        Dictionary with "nats", "tokens", "bytes", "words" (of a part of the text those of the whole, scaled),
        "windows", "seconds", "bits_per_byte", "perplexity" (per token) and "perplexity_per_word".
    """
    begin = time.perf_counter()
    sizes = {"batch_size": batch_size, "sequence_length": sequence_length, "packed": packed, "max_windows": max_windows}
    if isinstance(scorer.model, StatefulModel):
        scorer.model.reset_state()
        make = functools.partial(evaluation_segments, store, **sizes)
    else:
        make = functools.partial(evaluation_batches, store, **sizes, mask_rate=mask_rate)
    num_windows = -(-store.num_tokens // sequence_length)
    windows = num_windows if max_windows is None else min(num_windows, max_windows)
    batches = devices.distribute(lambda **shard: make(**shard).map(_as_inputs))
    result = scorer.predict(batches, steps=-(-windows // batch_size), verbose=0, callbacks=callbacks)
    nats, tokens = (float(total) for total in np.sum(result, axis=0, dtype=np.float64))
    tokens = int(tokens)
    whole = tokens == store.num_tokens
    num_bytes, num_words = (
        count if whole else count * tokens / store.num_tokens for count in (store.num_bytes, store.num_words)
    )
    sums = figures(nats, tokens, num_bytes, num_words)
    return {**sums, "windows": windows, "seconds": time.perf_counter() - begin}


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
