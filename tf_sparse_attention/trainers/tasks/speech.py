"""The task of speech: what a recording says, as phonemes or characters; connectionist temporal classification."""

import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import keras
import ml_collections
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.data.stores.speech_store import join_labels, label_separator
from tf_sparse_attention.generation import ctc_beam_search, ctc_greedy
from tf_sparse_attention.models import Backbone, SpeechRecognizer
from tf_sparse_attention.ops.ctc import ctc_loss
from tf_sparse_attention.ops.edit_distance import count_edits, hash_words
from tf_sparse_attention.trainers.configs import speech
from tf_sparse_attention.trainers.shared import backbone_settings, evaluation, illustrations, sampling
from tf_sparse_attention.trainers.tasks import task
from tf_sparse_attention.trainers.tasks.recordings import find_recordings
from tf_sparse_attention.trainers.tasks.settings import Names, check_settings
from tf_sparse_attention.trainers.tasks.task import Examples, Generated, Request, Show, Trial

NUM_FRAMES = 100  # that an exported model is tried with
NUM_SHOWN = 2  # recordings whose transcripts TensorBoard shows
EDITS = ("edits", "labels", "word_edits", "words")
SOUND = ("sample_rate", "num_bands", "pre_emphasis")  # settings of `config.data`


class Validation(evaluation.Validation):
    """Scores each recording once: nats per label, and the error rates of greedy decoding and of beams."""

    columns = ("nats", *EDITS)

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        kind, state = task.config.train.evaluation_attention, task.get_state()
        if kind is not None:
            model, self.variant = model.with_attention(speech.get_config(kind).model.attention), f"with_{kind}"
        super().__init__(task, model, split)  # there is no limit of recordings
        self.buckets = task.open_buckets(split)
        is_text = state["unit"] == "character" and " " in state["labels"]
        self._separator = state["labels"].index(" ") + 1 if is_text else None  # without one there are no words

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Returns the recordings."""
        return {"": self.buckets.evaluation_batches()}

    def score_rows(self, model: Any, inputs: Any, targets: Any, weights: Any) -> Sequence[Any]:
        log_probs = model(inputs, training=False)
        columns = ctc_loss(targets, log_probs), *self._edits(targets, ctc_greedy(log_probs))
        return [ops.cast(column, "float32") * weights for column in columns]

    def _edits(self, labels, hypotheses):
        """Returns `EDITS`, int32 (B,) each, of label ids (B, U) and (B, W)."""
        counts = count_edits(labels, hypotheses)
        if self._separator is None:
            return (*counts, *map(ops.zeros_like, counts))
        words = (hash_words(ops.convert_to_tensor(ids), self._separator) for ids in (labels, hypotheses))
        return (*counts, *count_edits(*words))

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        nats, *counts = rows.sum(axis=0)
        return {"nats": nats, **dict(zip(EDITS, map(int, counts), strict=True))}

    def figures(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Returns "loss" in nats per label, and "phone_error_rate", or those of characters and words."""
        found = {"loss": totals["nats"] / max(totals["labels"], 1)} if "nats" in totals else {}
        found[f"{self.task.get_state()['unit']}_error_rate"] = totals["edits"] / max(totals["labels"], 1)
        return found | ({"word_error_rate": totals["word_edits"] / totals["words"]} if totals["words"] else {})

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        """Returns the recordings, those left out by reason, and the error rates of `config.train.num_beams` beams."""
        num_beams, variant = self.task.config.train.num_beams, self.task.config.train.evaluation_attention
        found: dict[str, Any] = {"recordings": int(np.sum(~self.buckets.is_too_long))}
        found |= {"left_out": self.buckets.left_out, **({"attention": variant} if variant else {})}
        if num_beams and run.devices.is_single_process:
            sums = self._beam_sums(run, num_beams, run.resumable_sums("beams", num_beams))
            found["beams"] = {"num_beams": num_beams, **self.figures(sums)}
        return found

    def _beam_sums(self, run, num_beams, partial):
        """Returns the sums of `EDITS` of what `ctc_beam_search` finds, batch by batch."""
        shown = evaluation.Progress(self.buckets.num_batches)
        first, sums = partial.load()
        sums = dict.fromkeys(EDITS, 0.0) if sums is None else sums
        shown.begin(first)
        settings = self.task.config.train
        self.model.compile(**run.devices.execution(settings.jit_compile, settings.steps_per_execution))
        for number, (inputs, labels, weights) in enumerate(self.buckets.evaluation_batches().dataset(first), first):
            used = weights > 0
            log_probs = self.model.predict_on_batch(inputs)[used]
            rows = [ctc_beam_search(row, num_beams)[0].ids for row in log_probs]
            hypotheses = np.zeros((len(rows), max(1, *map(len, rows))), "int32")
            for row, ids in zip(hypotheses, rows, strict=True):
                row[: len(ids)] = ids
            added = [float(np.sum(ops.convert_to_numpy(column))) for column in self._edits(labels[used], hypotheses)]
            sums = {name: sums[name] + value for name, value in zip(EDITS, added, strict=True)}
            partial.save(number + 1, sums)
            shown.on_predict_batch_end(number - first)
        return sums

    @staticmethod
    def describe(scores: dict[str, Any]) -> list[tuple[str, str]]:
        left_out = [f"{count} {name.replace('_', ' ')}" for name, count in scores["left_out"].items() if count]
        rows = [
            ("recordings", f": {scores['recordings']}, left out: {', '.join(left_out) or 'none'}"),
            ("labels", str(scores["labels"])),
            ("nats per label", f"{scores['loss']:.4f}"),
        ]
        beams = scores.get("beams", {})
        for name in (name for name in scores if name.endswith("_error_rate")):
            with_beams = f", {beams['num_beams']} beams {beams[name]:.4f}" if name in beams else ""
            rows.append((name.replace("_", " "), f"{scores[name]:.4f}{with_beams}"))
        return rows

    def examples(self) -> Examples:
        """Returns transcripts of the first recordings with the references, and pictures of their posteriors."""
        store, texts, pictures = self.buckets.store, {}, {}
        for place, number in enumerate(self.buckets.numbers[:NUM_SHOWN]):
            features = store.features(number)
            log_probs = ops.convert_to_numpy(self.model(features[None], training=False))
            (ids,) = ops.convert_to_numpy(ctc_greedy(log_probs))
            texts[f"example_{place}/reference"] = self.task.as_labels(store.label_ids(number))
            texts[f"example_{place}/transcript"] = self.task.as_labels(ids[ids > 0])
            pictures[f"example_{place}"] = illustrations.posteriors(features, log_probs[0])
        return Examples(texts=texts, pictures=pictures)


class Task(task.Task):
    """Speech, by a `SpeechRecognizer`; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        "data": (*SOUND, "time_masks", "time_mask_width", "frequency_masks", "frequency_mask_width"),
        "model": ("subsampling", "causal"),
        "train": ("num_beams", "evaluation_attention"),
    }
    validation = Validation

    def __init__(self, config: ml_collections.ConfigDict, state: dict[str, Any] | None = None) -> None:
        check_settings(config, {"model": ("num_layers", "hidden_dim", "attention")}, {})
        if config.model.causal:
            raise ValueError("`config.model.causal` must be False for task=speech. Received: causal=True.")
        super().__init__(config, state)

    @functools.cached_property
    def source(self) -> tsa.data.SpeechSource:
        """The data set that `config.data` names."""
        data = backbone_settings.set_values(self.config.data)
        options = {name: data[name] for name in ("path", "tfds", "data_dir", "local_dir") if name in data}
        sound = {name: data[name] for name in SOUND if name in data}
        is_features = str(options.get("path", "")).endswith(".npz")
        return tsa.data.open_speech(**options, **({} if is_features else sound))

    def get_state(self) -> dict[str, Any]:
        """Returns "labels", their "unit", "mean" and "std" of the features, and "features", how they are made.

        All are those of the training split.
        """
        if not self._state:
            store = tsa.data.open_speech_store(self.source, self.config.data.train_split)
            self._state = {"labels": list(store.labels), "unit": store.unit, "features": self.source.description}
            self._state |= {"mean": store.mean.tolist(), "std": store.std.tolist()}
        return self._state

    def open_store(self, split: str) -> tsa.data.SpeechStore:
        """Returns the recordings of a split, with the labels of the training split.

        Raises:
            ValueError: for features that are made in another way than those of the training split, or other labels.
        """
        if split == self.config.data.train_split and self.source.labels is None and not self._state:
            return tsa.data.open_speech_store(self.source, split)
        state = self.get_state()
        found = {"unit": self.source.unit, "features": self.source.description}
        for name, value in found.items():
            if value != state[name]:
                raise ValueError(
                    f"`config.data` must have the {name} that the model was trained on, {state[name]}. "
                    f"Received: {value} of {self.source.name}."
                )
        return tsa.data.open_speech_store(self.source, split, state["labels"])

    def open_buckets(self, split: str) -> tsa.data.SpeechBuckets:
        """Returns the recordings of a split by length."""
        data = self.config.data
        sizes = data.batch_size, data.sequence_length, self.config.model.subsampling
        return tsa.data.SpeechBuckets(self.open_store(split), *sizes)

    def training_batches(self) -> tsa.data.Batches:
        """Returns the recordings of the training split, with masks over time and frequency."""
        data = self.config.data
        widths = data.time_masks, data.time_mask_width, data.frequency_masks, data.frequency_mask_width
        return self.open_buckets(data.train_split).training_batches(self.config.seed, tsa.data.FeatureMasks(*widths))

    def make_model(self) -> keras.Model:
        """Returns a `SpeechRecognizer`."""
        arguments, state = backbone_settings.backbone_arguments(self.config), self.get_state()
        subsampling = self.config.model.subsampling
        if subsampling == 1:
            arguments["embedding"] = {**arguments.get("embedding", {}), "dim": len(state["mean"])}
        return SpeechRecognizer(
            Backbone(None, **arguments),
            vocabulary_size=len(state["labels"]),
            num_features=len(state["mean"]),
            subsampling=subsampling,
            feature_mean=state["mean"],
            feature_std=state["std"],
            dtype=self.config.train.dtype,
        )

    def compile_arguments(self) -> dict[str, Any]:
        """Returns the mean nats per label."""
        return {"loss": tsa.models.CTCLoss()}

    def as_labels(self, ids: Any) -> str:
        """Returns label ids as text."""
        return join_labels(ids, self.get_state()["labels"], self.get_state()["unit"])

    def transcripts(self, model: Any, what: str, count: int, num_beams: int | None = None) -> Iterator[dict[str, Any]]:
        """Yields transcripts of recordings, with the reference if it is known.

        Args:
            model: the model.
            what: a file or a split, see `find_recordings`.
            count: recordings at most, of a split.
            num_beams: beam width. Default: None, the most likely label of each frame.
        """
        for name, features, reference in find_recordings(self, what, count):
            (ids,) = model.transcribe([features], num_beams)
            known = {} if reference is None else {"reference": reference}
            yield {"name": name, **known, "text": self.as_labels(ids), "num_tokens": len(ids)}

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Transcribes recordings and writes the transcripts, one JSON object per line.

        Args:
            model: the model.
            request: its prompt names a file or a split, see `find_recordings`, None the split "test"; of the settings
                "num_beams" is read, the beam width. Without it, the most likely label of each frame is taken.
            show: unused, since transcripts are printed together.
        """
        unsupported = sorted(set(request.settings) - {"num_beams"})
        if unsupported or request.complete is not None:
            raise ValueError(
                "A run of speech transcribes: of the settings it has `num_beams` alone. "
                f"Received: {', '.join(unsupported) or 'complete'}."
            )
        what = "test" if request.prompt is None else request.prompt.decode("utf-8", "surrogateescape")
        path = sampling.output_path(request.path, sampling.SAMPLES)
        samples: list[dict[str, Any]] = []
        try:
            for found in self.transcripts(model, what, request.num_samples, request.settings.get("num_beams")):
                samples.append({**found, "seed": request.seed, "interrupted": False})
        except KeyboardInterrupt:
            if not samples:
                raise
        sampling.write_samples(samples, path)
        keys = ("name", "reference", "text")
        lines = [f"{key:<12}{sample[key]}" for sample in samples for key in keys if key in sample]
        return Generated(samples, "\n".join(lines), path)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> Trial:
        """Writes what `export_speech` does. Transcription has no loop to compile."""
        state = self.get_state()
        sound = tsa.data.LogMel(**state["features"]) if "sample_rate" in state["features"] else None
        separator = label_separator(state["unit"])
        tsa.export.export_speech(model, path, state["labels"], separator, sound, weight_dtype)
        inputs = {"features": [[state["mean"]] * NUM_FRAMES], "num_frames": [NUM_FRAMES]}
        text = f"the transcript of {NUM_FRAMES} frames of mean features is"
        return Trial("transcribe", inputs, lambda found: f"{text} {found['text']!r}")
