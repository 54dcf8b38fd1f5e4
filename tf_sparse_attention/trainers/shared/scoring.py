"""Scores every token of a text once, in nats, summed in float64."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.data import evaluation_batches, evaluation_segments
from tf_sparse_attention.data.batches.windows import count_windows
from tf_sparse_attention.models import Model, StatefulModel

BATCHES_PER_SAVE = 128


class Scorer(Model):
    """Base of what scores each row of a batch: `predict` returns float32 (rows, columns).

    A subclass has `columns`, their names, and `call`, whose inputs are those of the model with "targets" and "weights".

    Args:
        model: the model.
    """

    columns: ClassVar[tuple[str, ...]]

    def __init__(self, model: Any) -> None:
        super().__init__(name="scorer")
        self.model = model
        self.built = True

    def predict_step(self, *arguments: Any, **keywords: Any) -> Any:
        result = super().predict_step(*arguments, **keywords)
        if keras.backend.backend() != "jax":
            return result
        rows, state = result
        return _readable_everywhere(rows), state

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        """Returns what is summed over all rows, numbers or arrays by name, of some, float64 (rows, columns), or none.

        By default the sum of each column.
        """
        return dict(zip(self.columns, rows.sum(axis=0), strict=True))


def _readable_everywhere(rows):
    """Returns rows with all of them in each process, where JAX has them on devices of several."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return rows
    layout = keras.distribution.TensorLayout([None] * len(rows.shape), distribution.device_mesh)
    return keras.distribution.distribute_tensor(rows, layout)


class TokenScorer(Scorer):
    """Nats of the targets of each window, and how many targets.

    Args:
        model: language model that takes its targets as inputs and returns their nats.
    """

    columns = ("nats", "tokens")

    def call(self, inputs: dict[str, Any]) -> Any:
        inputs = dict(inputs)
        weights = inputs.pop("weights")
        nats = self.model(inputs, training=False)
        return ops.stack([ops.sum(ops.cast(nats, "float32") * weights, axis=-1), ops.sum(weights, axis=-1)], axis=-1)


def make_scorer(model: keras.Model, execution: dict[str, Any], batch_size: int) -> TokenScorer:
    """Returns a compiled `TokenScorer`.

    Args:
        model: language model; one with segment memory reads the text as consecutive segments.
        batch_size: windows in a batch.
        execution: arguments of `keras.Model.compile`, see `one_device.OneDevice.execution`.
    """
    scorer = TokenScorer(StatefulModel(model, batch_size) if model.backbone.memory_length else model)
    scorer.compile(**execution)
    return scorer


def score(
    scorer: Any,
    store: Any,
    devices: Any,
    batch_size: int,
    sequence_length: int,
    use_packing: bool,
    mask_rate: float = 0.0,
    overlap: int = 0,
    max_windows: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    partial: Any = None,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, Any]:
    """Returns the metrics of a model on a token store, as plain data.

    Args:
        scorer: from `make_scorer`.
        store: `TokenStore`.
        devices: from `strategy.choose_devices`.
        batch_size: windows in a batch, over all replicas.
        sequence_length: tokens in a window; each begins without context, unless the model has segment memory.
        use_packing: whether documents in a window are separate sequences.
        mask_rate: fraction of the tokens that is hidden and scored. Default 0: all are scored, each given those before.
        overlap: tokens that a window shares with the one before, as context only.
        max_windows: maximum number of windows, evenly spread over the text. Default: None, all.
        callbacks: Keras callbacks for `predict`; if one stops it, the result is invalid.
        partial: `ResumableSums`, to resume a killed evaluation. Default: None, start at the beginning.
        progress: function from the number of batches to a `Progress`. Default: None, none.

    Returns:
        Dictionary with "nats", "tokens", "bytes", "words" (for part of a text, those of the whole in proportion),
        "windows", "seconds", "bits_per_byte", "perplexity" (per token) and "perplexity_per_word".
    """
    sizes: dict[str, Any] = {
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "use_packing": use_packing,
        "max_windows": max_windows,
    }
    num_windows = count_windows(store.num_tokens, sequence_length, overlap)
    windows = num_windows if max_windows is None else min(num_windows, max_windows)
    if isinstance(scorer.model, StatefulModel):
        # Segment memory is not saved: the text is read from the beginning, without interruption.
        _check_memory(overlap)
        scorer.model.reset_state()
        batches = evaluation_segments(store, **sizes)
        chunk, partial = int(batches.num_batches or 0), None
    else:
        batches = evaluation_batches(store, **sizes, mask_rate=mask_rate, overlap=overlap)
        chunk = BATCHES_PER_SAVE
    sums = sum_batches(scorer, devices, batches, chunk, callbacks, partial, progress)
    tokens = int(sums["tokens"])
    whole = tokens == store.num_tokens
    num_bytes, num_words = (
        count if whole else count * tokens / store.num_tokens for count in (store.num_bytes, store.num_words)
    )
    result = compute_metrics(sums["nats"], tokens, num_bytes, num_words)
    return {**result, "windows": windows, "seconds": sums["seconds"]}


def _check_memory(overlap):
    if overlap:
        raise ValueError(
            "`overlap` must be 0 for a model with segment memory, which has the text before as context. "
            f"Received: overlap={overlap}."
        )


def sum_batches(
    scorer: Any,
    devices: Any,
    batches: Any,
    chunk: int = BATCHES_PER_SAVE,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    partial: Any = None,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, Any]:
    """Returns the totals of all batches, by name, and the "seconds" that they took: plain data.

    Args:
        scorer: a compiled `Scorer`.
        devices: from `strategy.choose_devices`.
        batches: `tsa.data.Batches` of `(inputs, targets, weights)`, each once.
        chunk: batches after which the sums are saved.
        callbacks, partial, progress: as for `score`.
    """
    num_batches, batches = batches.num_batches, batches.map(_as_inputs)
    shown = None if progress is None else progress(num_batches)
    first, sums = (0, None) if partial is None else partial.load()
    if sums is None:
        sums = _added({}, {**scorer.totals(np.zeros((0, len(scorer.columns)))), "seconds": 0.0})
    callbacks = [*callbacks, *([] if shown is None else [shown])]
    while first < num_batches:
        begin, count = time.perf_counter(), min(chunk, num_batches - first)
        if shown is not None:
            shown.begin(first)
        part = devices.dataset(batches, first, first + count)
        result = scorer.predict(part, steps=count, verbose=0, callbacks=callbacks)
        totals = scorer.totals(np.asarray(result, np.float64))
        sums = _added(sums, {**totals, "seconds": time.perf_counter() - begin})
        first += count
        if partial is not None:
            partial.save(first, sums)
    return sums


def _added(sums, totals):
    """Returns sums, plain data, with further ones."""
    return {name: np.add(sums.get(name, 0), total).tolist() for name, total in totals.items()}


def _as_inputs(inputs, targets, weights):
    return ({**inputs, "targets": targets, "weights": weights},)


def compute_metrics(nats: float, tokens: int, num_bytes: float, num_words: float) -> dict[str, float | None]:
    """Returns the sums and the metrics computed from them.

    bits per byte = nats / (ln 2 bytes), perplexity = exp(nats / tokens), perplexity per word = exp(nats / words); the
    end of each document is a predicted token, but neither a byte nor a word. A perplexity that overflows, or one per
    word of a text without words, is None.
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
