"""The task of speech: what a recording says, as phonemes or characters; connectionist temporal classification."""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention.data.stores.speech_store import separator_of, transcript_of
from tf_sparse_attention.models import Backbone, SpeechRecognizer
from tf_sparse_attention.trainers.shared import components, exporting, sampling, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import with_overrides
from tf_sparse_attention.trainers.tasks import recordings, speech_scores
from tf_sparse_attention.trainers.tasks.parts import Generated, Request, TrainingData
from tf_sparse_attention.trainers.tasks.settings import Names, check_settings

SPEECH = "speech.json"
NUM_FRAMES = 100  # that an exported model is tried with
SOUND = ("sample_rate", "num_bands", "pre_emphasis")
NEEDED = {"model": ("num_layers", "hidden_dim", "attention")}  # settings


class Task:
    """Speech, by a `SpeechRecognizer`; see `trainers.tasks.registry`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        known: what the training split says and a work folder keeps: "labels", "unit", "mean", "std" and "features", how
            they are made. None: it is read from that split where it is needed.
    """

    settings: ClassVar[Names] = {
        "data": (*SOUND, "time_masks", "time_mask_width", "frequency_masks", "frequency_mask_width"),
        "model": ("subsampling", "causal"),
        "train": ("num_beams", "evaluation_attention"),
    }

    def __init__(self, config: ml_collections.ConfigDict, known: dict[str, Any] | None = None) -> None:
        _check(config)
        self.config = config
        self._known = known

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Returns the task of a work folder."""
        return cls(workdir.load_config(folder), workdir.read_json(folder, SPEECH))

    def save(self, folder: str | os.PathLike) -> None:
        """Writes labels and the normalization of features into a work folder."""
        workdir.save_json(folder, SPEECH, self.known)

    def check(self, folder: str | os.PathLike) -> None:
        """Raises a `ValueError` if a work folder has other labels, or other features."""
        if (workdir.open_workdir(folder) / SPEECH).exists() and workdir.read_json(folder, SPEECH) != self.known:
            raise ValueError(
                "`config.data` must lead to the labels and features of the checkpoint in the work folder; start a new "
                "run with another --workdir. Received: others."
            )

    @functools.cached_property
    def source(self) -> tsa.data.SpeechSource:
        """The data set that `config.data` names."""
        data = components.set_values(self.config.data)
        options = {name: data[name] for name in ("path", "tfds", "data_dir", "local_dir") if name in data}
        sound = {name: data[name] for name in SOUND if name in data}
        is_features = str(options.get("path", "")).endswith(".npz")
        return tsa.data.open_speech(**options, **({} if is_features else sound))

    @functools.cached_property
    def training_store(self) -> tsa.data.SpeechStore:
        """The recordings of the training split, which says what labels there are."""
        return tsa.data.open_speech_store(self.source, self.config.data.train_split)

    @property
    def known(self) -> dict[str, Any]:
        """What the training split says and a work folder keeps."""
        if self._known is None:
            store = self.training_store
            self._known = {"labels": list(store.labels), "unit": store.unit, "features": self.source.description}
            self._known |= {"mean": store.mean.tolist(), "std": store.std.tolist()}
        return self._known

    def open_store(self, split: str) -> tsa.data.SpeechStore:
        """Returns the recordings of a split, with the labels of the training split.

        Raises:
            ValueError: for features that are made in another way than those of the training split, or other labels.
        """
        if split == self.config.data.train_split and self.source.labels is None and self._known is None:
            return self.training_store
        found = {"unit": self.source.unit, "features": self.source.description}
        for name, value in found.items():
            if value != self.known[name]:
                raise ValueError(
                    f"`config.data` must have the {name} that the model was trained on, {self.known[name]}. "
                    f"Received: {value} of {self.source.name}."
                )
        return tsa.data.open_speech_store(self.source, split, self.known["labels"])

    def open_buckets(self, split: str) -> tsa.data.SpeechBuckets:
        """Returns the recordings of a split by length."""
        data = self.config.data
        sizes = data.batch_size, data.sequence_length, self.config.model.subsampling
        return tsa.data.SpeechBuckets(self.open_store(split), *sizes)

    def open_data(self) -> TrainingData:
        """Returns the recordings of the training split."""
        data = self.config.data
        sizes = data.batch_size, data.sequence_length, self.config.model.subsampling
        masks = tsa.data.FeatureMasks(
            data.time_masks, data.time_mask_width, data.frequency_masks, data.frequency_mask_width
        )
        store = self.training_store
        batches = tsa.data.SpeechBuckets(store, *sizes).training_batches(self.config.seed, masks)
        return TrainingData(self.source, self.source.fingerprint, batches, data.batch_size * data.sequence_length)

    def make_model(self) -> keras.Model:
        """Returns a `SpeechRecognizer`."""
        arguments, known = components.backbone_arguments(self.config), self.known
        subsampling = self.config.model.subsampling
        if subsampling == 1:
            arguments["embedding_dim"] = len(known["mean"])
        return SpeechRecognizer(
            Backbone(None, **arguments),
            vocabulary_size=len(known["labels"]),
            num_features=len(known["mean"]),
            subsampling=subsampling,
            feature_mean=known["mean"],
            feature_std=known["std"],
            dtype=self.config.train.dtype,
        )

    def make_training_model(self, model: Any) -> keras.Model:
        """Returns the model itself."""
        return model

    def make_loss(self) -> keras.losses.Loss:
        """Returns the mean nats a label."""
        return tsa.models.CTCLoss()

    def make_metrics(self) -> list[keras.metrics.Metric]:
        """Returns no metric: the loss is reported as Keras has it."""
        return []

    def make_validation(self, model: Any, execution: dict[str, Any]) -> speech_scores.Validation:
        """Returns the `Validation` of a model; `execution` has arguments of `keras.Model.compile`."""
        return speech_scores.Validation(self, model, self.open_buckets(self.config.data.validation_split), execution)

    def as_labels(self, ids: Any) -> str:
        """Returns label ids as text."""
        return transcript_of(ids, self.known["labels"], self.known["unit"])

    def evaluate(
        self, folder: str | os.PathLike, split: str, overrides: ml_collections.ConfigDict | None = None
    ) -> dict[str, Any]:
        """Scores every recording of a split, decoded greedily and by beams, and writes the scores.

        An evaluation that was killed resumes when it is started again.

        Args:
            folder: the work folder.
            split: name of the split.
            overrides: `overrides.overridable_settings()` with the settings to override. None: none.

        Returns:
            Dictionary: "split", "data", "recordings" that were scored and those "left_out" by reason, "labels", "nats"
            and "loss", nats a label; "phone_error_rate", or of characters "character_error_rate" and "word_error_rate";
            the same of "beams", with "num_beams", and "path", the file they were written to.

        Raises:
            ValueError: If there is no trained model or no such split, or the task ignores a setting of `overrides`.
        """
        config = with_overrides(self.config, overrides)
        return speech_scores.evaluate(type(self)(config, self.known), folder, split)

    def as_text(self, scores: dict[str, Any]) -> str:
        """Returns the scores as text, a line each."""
        return speech_scores.as_text(scores)

    def transcripts(
        self, folder: str | os.PathLike, what: str, count: int, num_beams: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields transcripts of recordings, with what should be written where that is known.

        Args:
            folder: the work folder.
            what: a file NAME.wav or NAME.npz, see `recordings.read_recordings`, or the name of a split.
            count: recordings at most, of a split.
            num_beams: beginnings that a beam search keeps. None: the likeliest label of each frame.

        Raises:
            ValueError: if there is no model, no such file and no such split.
        """
        model = workdir.load_model(folder)
        for name, features, reference in recordings.find_recordings(self, what, count):
            (ids,) = model.transcribe([features], num_beams)
            found = {"name": name, "text": self.as_labels(ids), "num_tokens": len(ids)}
            yield found if reference is None else {**found, "reference": reference}

    def generate(
        self,
        folder: str | os.PathLike,
        request: Request,
        show: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> Generated:
        """Transcribes recordings and writes the transcripts, one JSON object a line.

        Args:
            folder: the work folder.
            request: its prompt names a file or a split, see `transcripts`, None the split "test"; of the settings
                "num_beams" is read.
            show: unused, since transcripts are printed together.

        Raises:
            KeyboardInterrupt: If it is interrupted before the first transcript; later, there are those so far.
        """
        foreign = sorted(set(request.settings) - {"num_beams"})
        if foreign or request.complete is not None:
            raise ValueError(
                "A run of speech transcribes: of the settings it has `num_beams` alone. "
                f"Received: {', '.join(foreign) or 'complete'}."
            )
        what = "test" if request.prompt is None else request.prompt.decode("utf-8", "surrogateescape")
        beams = request.settings.get("num_beams")
        path = workdir.open_workdir(folder) / sampling.SAMPLES if request.path is None else request.path
        sampling.check_path(path)
        rows: list[dict[str, Any]] = []
        try:
            for row in self.transcripts(folder, what, request.num_samples, beams):
                rows.append({**row, "interrupted": False})
        except KeyboardInterrupt:
            if not rows:
                raise
        sampling.write_samples(rows, path)
        names = ("name", "reference", "text")
        lines = [f"{name:<12}{row[name]}" for row in rows for name in names if name in row]
        return Generated(rows, "\n".join(lines), path)

    def export(self, folder: str | os.PathLike, jit_compile: bool, weight_dtype: str | None) -> dict[str, Any]:
        """Writes the SavedModel of a work folder into it, see `export_speech`, and transcribes mean features with it.

        Transcription has no loop to compile.
        """
        saved_model, known = workdir.open_workdir(folder) / exporting.SAVED_MODEL, self.known
        model: Any = workdir.load_model(folder)
        sound = tsa.data.LogMel(**known["features"]) if "sample_rate" in known["features"] else None
        separator = separator_of(known["unit"])
        path = tsa.export.export_speech(model, saved_model, known["labels"], separator, sound, weight_dtype)
        inputs = {"features": [[known["mean"]] * NUM_FRAMES], "num_frames": [NUM_FRAMES]}
        found = exporting.run_alone(path, "transcribe", inputs)
        return {"path": str(path), **found, "proof": f"{NUM_FRAMES} frames of mean features say {found['text']!r}"}


def _check(config):
    """Raises a `ValueError` for settings that speech lacks, or that do not suit it."""
    check_settings(config, NEEDED, {})
    if config.model.causal:
        raise ValueError("`config.model.causal` must be False for task=speech. Received: causal=True.")
