"""Trains a language model: the body of `trainers.train`."""

import dataclasses
import functools
import os
import pathlib
from typing import Any

import keras
import ml_collections
from absl import logging

import tf_sparse_attention as tsa
from trainers.shared import (
    callbacks,
    components,
    illustrations,
    resume,
    scoring,
    strategy,
    tokenizers,
    workdir,
    writers,
)
from trainers.shared.checkpoints import Checkpoints, state_variables
from trainers.shared.files import remove_incomplete
from trainers.shared.renamed_settings import apply_renamed_settings


@dataclasses.dataclass
class Outcome:
    """How a call of `train` ended: the last step, the `signal.Signals` that ended it or None, and the model."""

    step: int
    signal: Any
    model: keras.Model


def train(config: ml_collections.ConfigDict, folder: str | os.PathLike) -> Outcome:
    """Trains the model of a configuration, starting at the newest checkpoint in its work folder, if any.

    A run that is killed at any moment and resumed with the same configuration ends with the same weights, bit for bit
    on one machine.

    Args:
        config: `ml_collections.ConfigDict`, see `configs/base.py`.
        folder: the work folder; made if it does not exist.

    Returns:
        `Outcome`.

    Raises:
        ValueError: For a wrong setting, or one that differs from that of the checkpoint.
    """
    apply_renamed_settings(config)
    _check(config)
    folder = workdir.open_workdir(folder, create=True)
    devices = strategy.choose_devices(config)
    execution = devices.execution(config.train.jit_compile, config.train.steps_per_execution)
    if config.train.deterministic:
        strategy.make_deterministic(execution["jit_compile"])
    with devices.scope():
        run = Run(config, folder, devices, execution)
        step = run.restore()
        signal = None
        if step < config.train.num_steps:
            step, signal = run.fit(step)
        elif step > config.train.num_steps:
            logging.warning("The run is at step %d, beyond config.train.num_steps=%d.", step, config.train.num_steps)
    if signal is None and devices.is_chief:
        workdir.save_model(folder, run.model)
    return Outcome(step, signal, run.model)


def _check(config):
    for name, least in {"num_steps": 1, "log_every": 1, "evaluate_every": 0, "checkpoint_every": 0}.items():
        if config.train[name] < least:
            raise ValueError(f"`config.train.{name}` must be {least} or more. Received: {name}={config.train[name]}.")


class Run:
    """The objects of one process of a run.

    Args:
        config, folder: as for `train`.
        devices: from `strategy.choose_devices`; the run is created and used in its scope.
        execution: arguments of `keras.Model.compile`, see `strategy.OneDevice.execution`.
    """

    def __init__(
        self, config: ml_collections.ConfigDict, folder: pathlib.Path, devices: Any, execution: dict[str, Any]
    ) -> None:
        self.config, self.folder, self.devices = config, folder, devices
        self._open_data()
        # After the data, since preparing it, which only the first start does, draws random numbers.
        keras.utils.set_random_seed(config.seed)
        self.model = components.make_model(config, self.tokenizer.vocabulary_size)
        self._training_model = components.make_training_model(config, self.model)
        optimizer = components.make_optimizer(config, self.model.backbone.hidden_dim)
        self._training_model.compile(optimizer, loss=tsa.models.language_model_loss(), **execution)
        self._training_model.optimizer.build(self.model.trainable_variables)
        self._scorer = scoring.make_scorer(self.model, execution, config.data.batch_size)
        self._checkpoints = Checkpoints(folder / workdir.CHECKPOINTS, config.train.keep_checkpoints)
        self._saved_step: int | None = None

    def _open_data(self):
        data, train = self.config.data, self.config.train
        self.tokenizer = tokenizers.make_tokenizer(data.tokenizer, data.vocabulary)
        self._source = source = components.make_text_source(self.config)
        self._description = resume.describe(self.config, source.fingerprint)
        store = tsa.data.open_token_store(source, self.tokenizer, data.train_split)
        self._batches = components.make_batches(self.config, store)
        if store.num_tokens < data.sequence_length:
            logging.warning(
                "The text has %d tokens, less than one window of config.data.sequence_length=%d: the rest is padding.",
                store.num_tokens,
                data.sequence_length,
            )
        self._validation: tsa.data.TokenStore | None = None
        self._health: tsa.analysis.Health | None = None  # the report before, from which drift is measured
        if train.evaluate_every:
            self._validation = tsa.data.open_token_store(source, self.tokenizer, data.validation_split)
        logging.info("%s: %d tokens to train on, %d a step", source.name, store.num_tokens, self._tokens_per_step)

    @property
    def _tokens_per_step(self):
        return self.config.data.batch_size * self.config.data.sequence_length

    def restore(self) -> int:
        """Loads the newest checkpoint, if there is one, and returns its step, else 0."""
        newest = self._checkpoints.newest_metadata()
        step = 0 if newest is None else newest["step"]
        if newest is not None:
            resume.check_compatible(newest, self._description)
            workdir.check_tokenizer(self.folder, self.tokenizer)
            self._checkpoints.load(step, self._variables())
            self._training_model.computed_windows = newest.get("windows", self._training_model.computed_windows)
            self._saved_step = step
        if self.devices.is_chief:
            remove_incomplete(self.folder)
            workdir.save_config(self.folder, self.config)
            workdir.save_tokenizer(self.folder, self.tokenizer)
            workdir.save_source(self.folder, self._source)
        logging.info(
            "%d weights, %d replicas of %s, from step %d to %d in %s",
            self.model.count_params(),
            self.devices.num_replicas,
            keras.backend.backend(),
            step,
            self.config.train.num_steps,
            self.folder,
        )
        return step

    def _variables(self):
        return state_variables(self._training_model, self._training_model.optimizer)

    def save(self, step: int) -> None:
        """Writes the checkpoint of a step unless it is saved already."""
        if step != self._saved_step and self.devices.is_chief:
            # The computed windows of adaptive spans are not weights, but affect rounding.
            windows = {"windows": self._training_model.computed_windows}
            self._checkpoints.save(step, self._variables(), {**self._description, **windows})
        self._saved_step = step

    def fit(self, step: int) -> tuple[int, Any]:
        """Trains from a step to the last, evaluating in between.

        Returns:
            The step after which it ended, and the signal that ended it or None.
        """
        settings = self.config.train
        (self.folder / workdir.MODEL).unlink(missing_ok=True)  # It is older than the checkpoints to come.
        described = resume.flat_settings(self._description["config"])
        outputs = (
            writers.open_writers(self.folder, settings.num_steps, step, described) if self.devices.is_chief else []
        )
        report = callbacks.Report(outputs, settings.log_every, self._tokens_per_step)
        saver = callbacks.SaveCheckpoints(self.save, settings.checkpoint_every)
        with callbacks.StopOnSignal() as stop:
            while step < settings.num_steps and stop.received is None:
                self._shrink_windows(step)
                self._fit_until(step, self._next_stop(step), [report, saver, stop])
                step = stop.step
                self._evaluate(step, stop, outputs)
            self.save(step)
        return step, stop.received

    def _next_stop(self, step):
        """Returns the step at which the next call of `fit` has to end."""
        settings = self.config.train
        intervals = [every for every in (settings.evaluate_every, settings.shrink_windows_every) if every]
        return min([settings.num_steps, *((step // every + 1) * every for every in intervals)])

    def _shrink_windows(self, step):
        """Updates the computed windows of adaptive spans, at steps divisible by `shrink_windows_every`."""
        settings = self.config.train
        # Not at other steps, where a run may be resumed: it has to compute what it did before.
        if settings.shrink_windows_every and step % settings.shrink_windows_every == 0:
            before = self._training_model.computed_windows
            window = self._training_model.shrink_windows(settings.shrink_windows_margin)
            if self._training_model.computed_windows != before:
                logging.info("Step %d: adaptive spans compute %d positions at most.", step, window)

    def _fit_until(self, step, end, used_callbacks):
        for callback in used_callbacks:
            callback.set_initial_step(step)
        make_dataset = functools.partial(self._batches.dataset, start_step=step, num_steps=end - step)
        batches = self.devices.distribute(make_dataset)
        self._training_model.fit(
            batches, steps_per_epoch=end - step, callbacks=used_callbacks, verbose=0, shuffle=False
        )

    def _evaluate(self, step, stop, outputs):
        """Scores the validation split if it is due, unless the process was asked to stop."""
        settings = self.config.train
        is_due = settings.evaluate_every and (step % settings.evaluate_every == 0 or step == settings.num_steps)
        if not is_due or stop.received is not None:
            return
        data = self.config.data
        metrics = scoring.score(
            self._scorer,
            self._validation,
            self.devices,
            data.batch_size,
            data.sequence_length,
            data.use_packing,
            data.mask_rate,
            max_windows=self.config.train.evaluation_windows or None,
            callbacks=[stop],
        )
        if stop.received is not None:
            return  # Not all windows were scored.
        names = ("bits_per_byte", "perplexity", "perplexity_per_word")
        scalars = {"validation/loss": metrics["nats"] / metrics["tokens"]}  # nats a token, as the loss of training
        scalars |= {f"validation/{name}": metrics[name] for name in names if metrics[name] is not None}
        for writer in outputs:
            writer.write(step, scalars)
        if settings.illustrate and outputs:
            self._illustrate(step, outputs)

    def _illustrate(self, step, outputs):
        """Shows what the model is like: a text of its own, the use of its clusters, pictures of routes and of spans."""
        first = self._validation.document(0)  # type: ignore[union-attr]  # there is one where it evaluates
        text = self.tokenizer.detokenize(first[: self.config.data.sequence_length])
        pictures = dict(illustrations.pictures(self.model, self.tokenizer, text))
        texts = {}
        self._health = illustrations.health_of(self.model, first[: self.config.data.sequence_length], self._health)
        if self._health is not None:
            texts["health"] = str(self._health)
            pictures |= illustrations.cluster_pictures(self._health)
            scalars = illustrations.health_scalars(self._health)
            for writer in outputs if scalars else ():
                writer.write(step, scalars)
        if self.config.model.causal:
            texts["sample"] = illustrations.sample_text(self.model, self.tokenizer, self.config.generate)
        for writer in outputs:
            writer.show(step, texts, pictures)
