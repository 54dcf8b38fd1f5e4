"""Scoring a text: every token once, in nats, added up in float64."""

import functools
import math
import time

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.data import evaluation_batches


class Scorer(keras.Model):
    """Nats of the targets of each window: what `predict` returns is a float32 vector of one number a window.

    Args:
        model: Language model from token ids to logits.
    """

    def __init__(self, model):
        super().__init__(name="scorer")
        self.model = model
        self.built = True

    def call(self, inputs):
        inputs = dict(inputs)
        targets, weights = inputs.pop("targets"), inputs.pop("weights")
        logits = self.model(inputs, training=False)
        nats = keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True)
        return ops.sum(ops.cast(nats, "float32") * weights, axis=-1)


def make_scorer(model, execution):
    """Returns a compiled `Scorer`.

    Args:
        model: Language model.
        execution: Arguments of `keras.Model.compile`, see `strategy.OneDevice.execution`.
    """
    scorer = Scorer(model)
    scorer.compile(**execution)
    return scorer


def score(scorer, store, devices, batch_size, sequence_length, packed, max_windows=None, callbacks=None):
    """Returns how well a model predicts a token store, as plain data.

    Args:
        scorer: Of `make_scorer`.
        store: `TokenStore`.
        devices: Of `strategy.choose`.
        batch_size: Windows in a batch, over all replicas.
        sequence_length: Tokens in a window; each begins without context.
        packed: Whether documents in a window do not see each other.
        max_windows: Only so many windows, evenly spread over the text; None: all.
        callbacks: Of Keras, for `predict`; one that stops it makes the result worthless.

    Returns:
        Dictionary with "nats", "tokens", "bytes", "words" (of a part of the text those of the whole, scaled),
        "windows", "seconds", "bits_per_byte", "perplexity" (per token) and "perplexity_per_word".
    """
    begin = time.perf_counter()
    num_windows = -(-store.num_tokens // sequence_length)
    windows = num_windows if max_windows is None else min(num_windows, max_windows)
    make = functools.partial(
        evaluation_batches, store, batch_size, sequence_length, packed=packed, max_windows=max_windows
    )
    batches = devices.distribute(lambda **shard: make(**shard).map(_as_inputs))
    nats = scorer.predict(batches, steps=-(-windows // batch_size), verbose=0, callbacks=callbacks)
    tokens = min(windows * sequence_length, store.num_tokens)
    whole = tokens == store.num_tokens
    num_bytes, num_words = (
        count if whole else count * tokens / store.num_tokens for count in (store.num_bytes, store.num_words)
    )
    sums = figures(float(np.sum(nats, dtype=np.float64)), tokens, num_bytes, num_words)
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
