"""Speech recognition: phones or characters with connectionist temporal classification (CTC)."""

import functools
import pathlib
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.data.sources.speech_source import read_recordings
from tf_sparse_attention.data.speech_store import SEPARATORS, join_labels
from tf_sparse_attention.generation import ctc_beam_search, ctc_greedy
from tf_sparse_attention.models import Backbone, SpeechRecognizer
from tf_sparse_attention.ops.ctc import ctc_loss
from tf_sparse_attention.ops.edit_distance import count_edits, hash_words
from tf_sparse_attention.trainers.configs import speech
from tf_sparse_attention.trainers.shared import components, evaluation, illustrations, sampling
from tf_sparse_attention.trainers.tasks import task
from tf_sparse_attention.trainers.tasks.task import Examples, ExportTest, Generated, Names, Request, Show

NUM_FRAMES = 100  # input that tests an exported model
NUM_SHOWN = 2  # recordings in TensorBoard
EDITS = ("edits", "labels", "word_edits", "words")
SOUND = ("sample_rate", "num_bands", "pre_emphasis")  # settings of `config.data`


class Validation(evaluation.Validation):
    """Scores of every recording: nats per label, and error rates of greedy decoding and beam search."""

    columns = ("nats", *EDITS)

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        kind, state = task.config.train.evaluation_attention, task.get_state()
        if kind is not None:
            model, self.variant = model.with_attention(speech.get_config(kind).model.attention), f"with_{kind}"
        super().__init__(task, model, split)  # all recordings are scored
        self.buckets = task.open_buckets(split)
        has_words = state["unit"] == "character" and " " in state["labels"]
        self._separator = state["labels"].index(" ") + 1 if has_words else None

    def batches(self) -> dict[str, tsa.data.Batches]:
        return {"": self.buckets.evaluation_batches()}

    def score_rows(self, model: Any, inputs: Any, targets: Any, weights: Any) -> Sequence[Any]:
        log_probs = model(inputs, training=False)
        columns = ctc_loss(targets, log_probs), *self._count_edits(targets, ctc_greedy(log_probs))
        return [ops.cast(column, "float32") * weights for column in columns]

    def _count_edits(self, labels, hypotheses):
        """Return `EDITS`, int32 (B,) each, of label ids (B, U) and (B, W)."""
        counts = count_edits(labels, hypotheses)
        if self._separator is None:
            return (*counts, *map(ops.zeros_like, counts))
        words = (hash_words(ops.convert_to_tensor(ids), self._separator) for ids in (labels, hypotheses))
        return (*counts, *count_edits(*words))

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        nats, *counts = rows.sum(axis=0)
        return {"nats": nats, **dict(zip(EDITS, map(int, counts), strict=True))}

    def metrics(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Return "loss" in nats per label, and the error rates of greedy decoding."""
        return {"loss": totals["nats"] / max(totals["labels"], 1), **self._error_rates(totals)}

    def _error_rates(self, totals):
        """Return "phone_error_rate" or "character_error_rate", and "word_error_rate" if there are words."""
        rates = {f"{self.task.get_state()['unit']}_error_rate": totals["edits"] / max(totals["labels"], 1)}
        return rates | ({"word_error_rate": totals["word_edits"] / totals["words"]} if totals["words"] else {})

    def details(self, run: evaluation.EvaluationRun, scores: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers of scored and left-out recordings, and the error rates of beam search."""
        settings = self.task.config.train
        details = {"recordings": int(np.sum(~self.buckets.is_too_long)), "left_out": self.buckets.left_out}
        if settings.evaluation_attention:
            details["attention"] = settings.evaluation_attention
        if settings.num_beams and run.devices.is_single_process:
            totals = self._beam_search_totals(run, settings)
            details["beams"] = {"num_beams": settings.num_beams, **self._error_rates(totals)}
        return details

    def _beam_search_totals(self, run, settings):
        """Return the sums of `EDITS` over the hypotheses of `ctc_beam_search`."""
        progress = evaluation.Progress(self.buckets.num_batches)
        partial = run.resumable_sums("beams", settings.num_beams)
        first, sums = partial.load()
        sums = sums or dict.fromkeys(EDITS, 0.0)
        progress.begin(first)
        self.model.compile(**run.devices.execution(settings.jit_compile, settings.steps_per_execution))
        for number, (inputs, labels, weights) in enumerate(self.buckets.evaluation_batches().dataset(first), first):
            exists = weights > 0
            log_probs = self.model.predict_on_batch(inputs)[exists]
            rows = [ctc_beam_search(row, settings.num_beams)[0].ids for row in log_probs]
            hypotheses = keras.utils.pad_sequences(rows, max(1, *map(len, rows)), padding="post")
            counts = map(ops.sum, self._count_edits(labels[exists], hypotheses))
            sums = {name: sums[name] + float(count) for name, count in zip(EDITS, counts, strict=True)}
            partial.save(number + 1, sums)
            progress.on_predict_batch_end(number - first)
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
        """Return transcripts and references of the first recordings, and pictures of the posteriors."""
        store, texts, pictures = self.buckets.store, {}, {}
        for index, number in enumerate(self.buckets.numbers[:NUM_SHOWN]):
            features = store.features(number)
            log_probs = ops.convert_to_numpy(self.model(features[None], training=False))
            (ids,) = ops.convert_to_numpy(ctc_greedy(log_probs))
            texts[f"example_{index}/reference"] = self.task.as_text(store.label_ids(number))
            texts[f"example_{index}/transcript"] = self.task.as_text(ids[ids > 0])
            pictures[f"example_{index}"] = illustrations.posteriors(features, log_probs[0])
        return Examples(texts=texts, pictures=pictures)


class Task(task.Task):
    """Speech recognition with a `SpeechRecognizer`; see `trainers.tasks.task.Task`."""

    settings: ClassVar[Names] = {
        "data": (*SOUND, "time_masks", "time_mask_width", "frequency_masks", "frequency_mask_width"),
        "model": ("subsampling", "causal"),
        "train": ("num_beams", "evaluation_attention"),
    }
    validation = Validation
    _required: ClassVar[Names] = {"model": components.SIZES}
    _excluded: ClassVar[Names] = {"model": ("causal",)}

    @functools.cached_property
    def source(self) -> tsa.data.SpeechSource:
        has_features = str(self.config.data.path).endswith(".npz")
        return tsa.data.open_speech(**components.data_settings(self.config, *(() if has_features else SOUND)))

    def get_state(self) -> dict[str, Any]:
        """Return "labels", "unit", "mean" and "std" of the training split, and "features", their settings."""
        if not self._state:
            store = tsa.data.open_speech_store(self.source, self.config.data.train_split)
            self._state = {"labels": list(store.labels), "unit": store.unit, "features": self.source.description}
            self._state |= {"mean": store.mean.tolist(), "std": store.std.tolist()}
        return self._state

    def open_store(self, split: str) -> tsa.data.SpeechStore:
        """Open the recordings of a split, with the labels of the training split."""
        if split == self.config.data.train_split and self.source.labels is None and not self._state:
            return tsa.data.open_speech_store(self.source, split)
        state = self.get_state()
        for name, value in {"unit": self.source.unit, "features": self.source.description}.items():
            if value != state[name]:
                raise ValueError(
                    f"`config.data` must have the {name} that the model was trained on, {state[name]}. "
                    f"Received: {value} of {self.source.name}."
                )
        return tsa.data.open_speech_store(self.source, split, state["labels"])

    def open_buckets(self, split: str) -> tsa.data.SpeechBuckets:
        data = self.config.data
        sizes = data.batch_size, data.sequence_length, self.config.model.subsampling
        return tsa.data.SpeechBuckets(self.open_store(split), *sizes)

    def training_batches(self) -> tsa.data.Batches:
        """Return the recordings of the training split, with time and frequency masks."""
        data = self.config.data
        sizes = data.time_masks, data.time_mask_width, data.frequency_masks, data.frequency_mask_width
        masks = tsa.data.FeatureMasks(*sizes, self.config.seed)
        return self.open_buckets(data.train_split).training_batches(self.config.seed, masks=masks)

    def make_model(self) -> keras.Model:
        state, subsampling = self.get_state(), self.config.model.subsampling
        arguments, num_features = components.backbone_arguments(self.config), len(state["mean"])
        if subsampling == 1:
            arguments["embedding"] = {**arguments.get("embedding", {}), "dim": num_features}
        encoder, sizes = Backbone(None, **arguments), (len(state["labels"]), num_features, subsampling)
        return SpeechRecognizer(encoder, *sizes, state["mean"], state["std"], dtype=self.config.train.dtype)

    def compile_arguments(self) -> dict[str, Any]:
        """Return the mean nats per label as "loss"."""
        return {"loss": tsa.models.CTCLoss()}

    def as_text(self, ids: Any) -> str:
        return join_labels(ids, self.get_state()["labels"], self.get_state()["unit"])

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Transcribe recordings, and write one JSON object per transcript. `show` is unused.

        `request.prompt` is a file or a split, see `find_recordings`; None: the split "test". The only setting is
        "num_beams", the beam width. Without it, decoding is greedy.
        """
        given = [name for name in ("length", "complete") if getattr(request, name) is not None]
        if unsupported := [*given, *sorted(request.settings.keys() - {"num_beams"})]:
            names = ", ".join(unsupported)
            raise ValueError(f"`num_beams` must be the only setting for transcripts. Received: {names}.")
        data = "test" if request.prompt is None else request.prompt.decode("utf-8", "surrogateescape")
        path = sampling.output_path(request.path, sampling.SAMPLES)
        samples: list[dict[str, Any]] = []
        try:
            for recording in find_recordings(self, data, request.num_samples):
                (ids,) = model.transcribe([recording.pop("features")], request.settings.get("num_beams"))
                sample = {**recording, "text": self.as_text(ids), "num_tokens": len(ids)}
                samples.append({**sample, "seed": request.seed, "interrupted": False})
        except KeyboardInterrupt:
            if not samples:
                raise
        sampling.write_samples(samples, path)
        keys = ("name", "reference", "text")
        lines = [f"{key:<12}{sample[key]}" for sample in samples for key in keys if key in sample]
        return Generated(samples, "\n".join(lines), path)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> ExportTest:
        """Write a SavedModel with `export_speech`. `jit_compile` is unused, because there is no loop."""
        state = self.get_state()
        sound = tsa.data.LogMel(**state["features"]) if "sample_rate" in state["features"] else None
        tsa.export.export_speech(model, path, state["labels"], SEPARATORS[state["unit"]], sound, weight_dtype)
        inputs = {"features": [[state["mean"]] * NUM_FRAMES], "num_frames": [NUM_FRAMES]}
        text = f"{NUM_FRAMES} frames of mean features are transcribed as"
        return ExportTest("transcribe", inputs, lambda outputs: f"{text} {outputs['text']!r}")


def find_recordings(task: "Task", data: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield recordings as dictionaries: "name", "features" (T, F), and for a split "reference", the transcript.

    `data` is a file NAME.wav or NAME.npz, or the name of a split. Of a split, at most `count` recordings are yielded.
    """
    if min(data, default=" ") < " ":  # control characters: file content of --prompt_file
        raise ValueError(
            "`prompt` must be the name of a file NAME.wav or NAME.npz, or a split: --prompt=NAME.wav. "
            f"Received: {reprlib.repr(data)}."
        )
    if data.lower().endswith((".wav", ".npz")):
        for name, features in read_recordings(data, task.get_state()["features"]):
            yield {"name": name, "features": features}
        return
    store = task.open_store(data)
    for number in range(min(count, store.num_utterances)):
        reference = store.transcript(store.label_ids(number))
        yield {"name": f"{data}[{number}]", "features": store.features(number), "reference": reference}
