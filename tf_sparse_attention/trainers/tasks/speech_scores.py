"""The scores of recognition: nats a label, and error rates of greedy decoding and of beams."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.generation import ctc_beam_search, ctc_greedy
from tf_sparse_attention.ops.ctc import ctc_loss
from tf_sparse_attention.ops.edit_distance import edit_distance, hash_words
from tf_sparse_attention.trainers.configs import speech
from tf_sparse_attention.trainers.shared import scoring, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import EvaluationRun
from tf_sparse_attention.trainers.shared.resumable_sums import Progress
from tf_sparse_attention.trainers.tasks.parts import Shown

NUM_SHOWN = 2  # recordings whose transcripts TensorBoard shows
SUMS = ("nats", "edits", "labels", "word_edits", "words")
WIDEST = 1200  # of a picture, in pixels


class SpeechScorer(scoring.Scorer):
    """The `SUMS` of each recording.

    Args:
        model: a `SpeechRecognizer`.
        separator: id of the label between words. None: there are no words, and their columns are 0.
    """

    columns = SUMS

    def __init__(self, model: Any, separator: int | None) -> None:
        super().__init__(model)
        self.separator = separator

    def call(self, inputs: dict[str, Any]) -> Any:
        inputs = dict(inputs)
        labels, weights = inputs.pop("targets"), inputs.pop("weights")
        log_probs = self.model(inputs, training=False)
        columns = [ctc_loss(labels, log_probs), *edits_of(labels, ctc_greedy(log_probs), self.separator)]
        return ops.stack([ops.cast(column, "float32") * weights for column in columns], axis=-1)


def edits_of(labels: Any, hypotheses: Any, separator: int | None) -> tuple[Any, ...]:
    """Returns edits and labels, and those of words, int32 (B,) each, of label ids (B, U) and (B, W)."""
    counts = edit_distance(labels, hypotheses), _count(labels)
    if separator is None:
        return (*counts, ops.zeros_like(counts[0]), ops.zeros_like(counts[0]))
    references, words = (hash_words(ops.convert_to_tensor(ids), separator) for ids in (labels, hypotheses))
    return (*counts, edit_distance(references, words), _count(references[..., 0]))


def _count(ids):
    return ops.sum(ops.cast(ops.convert_to_tensor(ids) != 0, "int32"), axis=-1)


class Validation:
    """Scores the validation split while a model is trained, and shows transcripts and posteriors.

    Args:
        task: a `trainers.tasks.speech.Task`.
        model: its model.
        buckets: `SpeechBuckets` of the split.
        execution: arguments of `keras.Model.compile`.
    """

    def __init__(self, task: Any, model: Any, buckets: Any, execution: dict[str, Any]) -> None:
        self.task = task
        self.model = model
        self.buckets = buckets
        labels = task.known["labels"]
        is_text = task.known["unit"] == "character" and " " in labels
        self._scorer = SpeechScorer(model, labels.index(" ") + 1 if is_text else None)
        self._scorer.compile(**execution)

    def score(self, devices: Any, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, float]:
        """Returns the loss in nats a label and the error rates of greedy decoding."""
        return self.rates(self.sums(devices, callbacks))

    def sums(self, devices: Any, callbacks: Sequence[Any] = (), **options: Any) -> dict[str, float]:
        """Returns the `SUMS` of all recordings; `options` as for `scoring.sum_batches`."""
        batches = self.buckets.evaluation_batches()
        return scoring.sum_batches(self._scorer, devices, batches, callbacks=callbacks, **options)

    def rates(self, sums: dict[str, float]) -> dict[str, float]:
        """Returns the scores by name."""
        found = {"loss": sums["nats"] / max(sums["labels"], 1)} if "nats" in sums else {}
        found[f"{self.task.known['unit']}_error_rate"] = sums["edits"] / max(sums["labels"], 1)
        return found | ({"word_error_rate": sums["word_edits"] / sums["words"]} if sums["words"] else {})

    def beam_sums(self, num_beams: int, partial: Any, progress: Any) -> dict[str, float]:
        """Returns the sums of edits and labels of what `ctc_beam_search` finds, batch by batch."""
        program = self.model.predict_on_batch
        shown = progress(self.buckets.num_batches)
        first, sums = partial.load()
        sums = dict.fromkeys(SUMS[1:], 0.0) if sums is None else sums
        shown.begin(first)
        batches = self.buckets.evaluation_batches()
        for number, (inputs, labels, weights) in enumerate(batches.dataset(first), first):
            used = weights > 0
            log_probs = program(inputs)[used]
            rows = [ctc_beam_search(row, num_beams)[0].ids for row in log_probs]
            hypotheses = np.zeros((len(rows), max(1, *map(len, rows))), "int32")
            for row, ids in zip(hypotheses, rows, strict=True):
                row[: len(ids)] = ids
            columns = edits_of(labels[used], hypotheses, self._scorer.separator)
            added = [float(np.sum(ops.convert_to_numpy(column))) for column in columns]
            sums = {name: sums[name] + value for name, value in zip(SUMS[1:], added, strict=True)}
            partial.save(number + 1, sums)
            shown.on_predict_batch_end(number - first)
        return sums

    def show(self) -> Shown:
        """Returns transcripts of the first recordings beside what they should be, and pictures of their posteriors."""
        store, texts, pictures = self.buckets.store, {}, {}
        for place, number in enumerate(self.buckets.numbers[:NUM_SHOWN]):
            features = store.features(number)
            log_probs = ops.convert_to_numpy(self.model(features[None], training=False))
            (ids,) = ops.convert_to_numpy(ctc_greedy(log_probs))
            texts[f"example_{place}/reference"] = self.task.as_labels(store.label_ids(number))
            texts[f"example_{place}/transcript"] = self.task.as_labels(ids[ids > 0])
            pictures[f"example_{place}"] = picture_of(features, log_probs[0])
        return Shown({}, texts, pictures)


def picture_of(features: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
    """Returns a picture, uint8 (height, width, 3): features (T, F), and below the posteriors of labels (T', V + 1).

    Frames go to the right, low bands and the blank are at the bottom, each row three pixels; up to 1,200 frames.
    """
    stretched = np.repeat(np.exp(log_probs), -(-len(features) // len(log_probs)), axis=0)[: len(features)]
    low, high = np.min(features), np.max(features)
    panels = (features - low) / max(high - low, 1e-6), stretched
    rows = [np.repeat(panel[:WIDEST].T[::-1], 3, axis=0) for panel in panels]
    line = np.ones((3, rows[0].shape[1]))
    shades = np.round(255 * np.concatenate([rows[0], line, rows[1]])).astype("uint8")
    return np.repeat(shades[..., None], 3, axis=-1)


def evaluate(task: Any, folder: str | os.PathLike, split: str) -> dict[str, Any]:
    """Returns the scores of the model in a work folder, see `Task.evaluate`, and writes them there."""
    kind, num_beams = task.config.train.evaluation_attention, task.config.train.num_beams
    run = EvaluationRun(folder, split, task.config, task.source, None if kind is None else f"with_{kind}")
    with run.devices.scope():
        model, buckets = workdir.load_model(folder), task.open_buckets(split)
        model = model if kind is None else model.with_attention(speech.get_config(kind).model.attention)
        model.compile(**run.execution)
        validation = Validation(task, model, buckets, run.execution)
        partial, of_beams = run.resumable_sums(), run.resumable_sums("beams", num_beams)
        sums = validation.sums(run.devices, partial=partial, progress=Progress)
        beams = {}
        if num_beams and run.devices.is_single_process:
            found = validation.beam_sums(num_beams, of_beams, Progress)
            beams = {"beams": {"num_beams": num_beams, **validation.rates(found)}}
    counts = {"recordings": int(np.sum(~buckets.is_too_long)), "left_out": buckets.left_out}
    counts |= {} if kind is None else {"attention": kind}
    counts |= {"labels": int(sums["labels"]), "nats": sums["nats"]}
    result = {"split": split, "data": task.source.name, **counts, **validation.rates(sums), **beams}
    return run.write({**result, "seconds": sums["seconds"]})


def as_text(scores: dict[str, Any]) -> str:
    """Returns the scores as text, a line each."""
    beams = scores.get("beams", {})
    left_out = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in scores["left_out"].items() if count)
    rows = [
        ("recordings", f"{scores['data']}, {scores['split']}: {scores['recordings']}, left out: {left_out or 'none'}"),
        ("labels", str(scores["labels"])),
        ("nats a label", f"{scores['loss']:.4f}"),
    ]
    for name in ("phone_error_rate", "character_error_rate", "word_error_rate"):
        if name in scores:
            with_beams = f", {beams['num_beams']} beams {beams[name]:.4f}" if name in beams else ""
            rows.append((name.replace("_", " "), f"{scores[name]:.4f}{with_beams}"))
    return "\n".join(f"{name:<22}{value}" for name, value in rows)
