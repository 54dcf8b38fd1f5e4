"""The training of a language model: what `trainers.train` does once its flags are read."""

import dataclasses
import functools
from typing import Any

import keras
import ml_collections
from absl import logging

import tf_sparse_attention as tsa
from trainers import callbacks, components, resume, scoring, strategy, tokenizers, workdir, writers
from trainers.checkpoints import Checkpoints, state_variables
from trainers.configs import base
from trainers.files import remove_incomplete


@dataclasses.dataclass
class Outcome:
    """How a call of `train` ended: after which step, by which `signal.Signals` if any, and with what model."""

    step: int
    signal: Any
    model: keras.Model


def train(config, folder):
    """Trains the model of a configuration, from the newest checkpoint in its work folder if there is one.

    A run that is killed at any moment and started again with the same configuration ends with the same weights, bit for
    bit on one machine.

    Args:
        config: `ml_collections.ConfigDict`, see `configs/base.py`.
        folder: The work folder; made if it does not exist.

    Returns:
        `Outcome`.

    Raises:
        ValueError: For a wrong setting, or one that differs from that of the checkpoint.
    """
    config = ml_collections.ConfigDict(base.with_new_names(config.to_dict(), warn=True))
    _check(config)
    folder = workdir.open_workdir(folder, create=True)
    devices = strategy.choose(config)
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
        config, folder: As for `train`.
        devices: Of `strategy.choose`, in whose scope this is made and used.
        execution: Arguments of `keras.Model.compile`, see `strategy.OneDevice.execution`.
    """

    def __init__(self, config, folder, devices, execution):
        self.config, self.folder, self.devices = config, folder, devices
        self._open_data()
        # After the data: preparing it, which only the first start does, draws random numbers.
        keras.utils.set_random_seed(config.seed)
        self.model = components.make_model(config, self.tokenizer.vocabulary_size)
        self._trained = components.make_trained(config, self.model)
        optimizer = components.make_optimizer(config, self.model.backbone.hidden_dim)
        self._trained.compile(optimizer, loss=tsa.models.language_model_loss(), **execution)
        self._trained.optimizer.build(self.model.trainable_variables)
        self._scorer = scoring.make_scorer(self.model, execution, config.data.batch_size)
        self._checkpoints = Checkpoints(folder / workdir.CHECKPOINTS, config.train.keep_checkpoints)
        self._saved_step = None

    def _open_data(self):
        data, train = self.config.data, self.config.train
        self.tokenizer = tokenizers.make_tokenizer(data.tokenizer, data.vocabulary)
        self._source = source = components.make_source(self.config)
        self._description = resume.describe(self.config, source.fingerprint)
        store = tsa.data.open_token_store(source, self.tokenizer, data.train_split)
        self._batches = components.make_batches(self.config, store)
        if store.num_tokens < data.sequence_length:
            logging.warning(
                "The text has %d tokens, less than one window of config.data.sequence_length=%d: the rest is padding.",
                store.num_tokens,
                data.sequence_length,
            )
        self._validation = None
        if train.evaluate_every:
            self._validation = tsa.data.open_token_store(source, self.tokenizer, data.validation_split)
        logging.info("%s: %d tokens to train on, %d a step", source.name, store.num_tokens, self._tokens_per_step)

    @property
    def _tokens_per_step(self):
        return self.config.data.batch_size * self.config.data.sequence_length

    def restore(self):
        """Loads the newest checkpoint, if there is one, and returns its step, else 0."""
        newest = self._checkpoints.newest_metadata()
        step = 0 if newest is None else newest["step"]
        if newest is not None:
            resume.check_same(newest, self._description)
            workdir.check_tokenizer(self.folder, self.tokenizer)
            self._checkpoints.load(step, self._variables())
            self._trained.computed_windows = newest.get("windows", self._trained.computed_windows)
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
        return state_variables(self._trained, self._trained.optimizer)

    def save(self, step):
        """Writes the checkpoint of a step unless it is there."""
        if step != self._saved_step and self.devices.is_chief:
            # How much of its window a span computes is no weight, and yet goes into the rounding.
            windows = {"windows": self._trained.computed_windows}
            self._checkpoints.save(step, self._variables(), {**self._description, **windows})
        self._saved_step = step

    def fit(self, step):
        """Trains from a step to the last, evaluating in between.

        Returns:
            The step after which it ended, and the signal that ended it or None.
        """
        settings = self.config.train
        (self.folder / workdir.MODEL).unlink(missing_ok=True)  # It would be older than the checkpoints.
        outputs = writers.open_writers(self.folder, settings.num_steps, step) if self.devices.is_chief else []
        report = callbacks.Report(outputs, settings.log_every, self._tokens_per_step)
        saver = callbacks.SaveCheckpoints(self.save, settings.checkpoint_every)
        with callbacks.StopOnSignal() as stop:
            while step < settings.num_steps and stop.received is None:
                self._shrink_windows(step)
                self._fit_part(step, self._next_stop(step), [report, saver, stop])
                step = stop.step
                self._evaluate(step, stop, outputs)
            self.save(step)
        return step, stop.received

    def _next_stop(self, step):
        """Returns the next step before which something has to be done between two calls of `fit`."""
        settings = self.config.train
        intervals = [every for every in (settings.evaluate_every, settings.shrink_windows_every) if every]
        return min([settings.num_steps, *((step // every + 1) * every for every in intervals)])

    def _shrink_windows(self, step):
        """Shrinks windows to the adaptive spans, every `shrink_windows_every` steps."""
        settings = self.config.train
        # Not in between, where a run may be that goes on: what is computed has to be what it was before.
        if settings.shrink_windows_every and step % settings.shrink_windows_every == 0:
            before = self._trained.computed_windows
            window = self._trained.shrink_windows(settings.shrink_windows_margin)
            if self._trained.computed_windows != before:
                logging.info("Step %d: adaptive spans compute %d positions at most.", step, window)

    def _fit_part(self, step, end, used):
        for callback in used:
            callback.begin_at(step)
        make_dataset = functools.partial(self._batches.dataset, start_step=step, num_steps=end - step)
        batches = self.devices.distribute(make_dataset)
        self._trained.fit(batches, steps_per_epoch=end - step, callbacks=used, verbose=0, shuffle=False)

    def _evaluate(self, step, stop, outputs):
        """Scores the validation split where it is time, unless the process is to stop."""
        settings = self.config.train
        is_time = settings.evaluate_every and (step % settings.evaluate_every == 0 or step == settings.num_steps)
        if not is_time or stop.received is not None:
            return
        data = self.config.data
        figures = scoring.score(
            self._scorer,
            self._validation,
            self.devices,
            data.batch_size,
            data.sequence_length,
            data.packed,
            data.mask_rate,
            max_windows=self.config.train.evaluation_windows or None,
            callbacks=[stop],
        )
        if stop.received is not None:
            return  # Not all windows were scored.
        names = ("bits_per_byte", "perplexity", "perplexity_per_word")
        scalars = {f"validation/{name}": figures[name] for name in names if figures[name] is not None}
        for writer in outputs:
            writer.write(step, scalars)
