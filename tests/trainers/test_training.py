"""Training in one process: files, resumption, signals, and nonfinite losses or weights."""

import json
import os
import shutil
import signal
import socket
import zipfile

import keras
import numpy as np
import pytest
from keras import ops

import tf_sparse_attention as tsa
from tests import remote_paths  # noqa: F401  # registers the scheme disk://
from tests.trainers.task_runs import SignalAt, arrays_of, load_tokenizer
from tf_sparse_attention import remote_files
from tf_sparse_attention.trainers.shared import callbacks, evaluation, remote_run, training, workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints
from tf_sparse_attention.trainers.shared.devices import OneDevice
from tf_sparse_attention.trainers.tasks import registry


def metrics_of(folder):
    return [json.loads(row) for row in (folder / workdir.METRICS).read_text().splitlines()]


@pytest.fixture
def finished_copy(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "copy")


FILES = "checkpoints checksums.json config.json metrics.jsonl model.keras source.json task.json tensorboard train.lock"


def test_a_run_leaves_the_model_the_metrics_and_the_last_checkpoints(finished):
    folder, outcome = finished
    assert (outcome.step, outcome.signal) == (8, None)
    assert sorted(path.name for path in folder.iterdir()) == FILES.split()
    assert Checkpoints(folder / workdir.CHECKPOINTS).steps() == [4, 6, 8]
    rows = metrics_of(folder)
    assert [row["step"] for row in rows] == [2, 4, 4, 6, 8, 8]
    routing = [f"routing/block_0/attention/routing_0/{kind}" for kind in ("used", "entropy")]
    expected = {"step", "loss", "loss_peak", "loss_spikes", "learning_rate", "gradient_norm", "tokens_per_second"}
    assert [set(row) for row in rows if "loss" in row] == [{*expected, *routing}] * 4
    validations = {f"validation/{name}" for name in ("loss", "bits_per_byte", "perplexity", "perplexity_per_word")}
    assert [set(row) for row in rows if "loss" not in row] == [{"step", *validations}] * 2


def test_a_model_without_checkpoints_is_not_replaced(finished_copy, tiny_config):
    shutil.rmtree(finished_copy / workdir.CHECKPOINTS)
    before = (finished_copy / workdir.MODEL).read_bytes()
    with pytest.raises(ValueError, match="`workdir` must be new or have checkpoints, because training replaces"):
        training.train(tiny_config, finished_copy)
    assert (finished_copy / workdir.MODEL).read_bytes() == before


def test_training_lowers_the_loss_and_moves_the_centroids(finished):
    folder, _ = finished
    losses = [row["loss"] for row in metrics_of(folder) if "loss" in row]
    assert losses[-1] < losses[0] - 0.3
    checkpoints = Checkpoints(folder / workdir.CHECKPOINTS)
    centroids = []
    for step in (4, 8):
        with zipfile.ZipFile(checkpoints.path(step)) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("clusters/centroids.npy")]
            centroids.append(archive.read(name))
    assert centroids[0] != centroids[1]


def test_the_saved_model_is_the_trained_one_and_without_it_the_newest_checkpoint_is_loaded(
    finished, finished_copy, tiny_config
):
    ids = np.arange(20)[None] + 2
    expected = ops.convert_to_numpy(finished[1].model(ids))
    np.testing.assert_array_equal(ops.convert_to_numpy(workdir.load_model(finished_copy)(ids)), expected)
    assert isinstance(load_tokenizer(finished_copy), tsa.data.ByteTokenizer)
    assert workdir.load_config(finished_copy).to_dict() == json.loads(json.dumps(tiny_config.to_dict()))
    (finished_copy / workdir.MODEL).unlink()
    np.testing.assert_array_equal(ops.convert_to_numpy(workdir.load_model(finished_copy)(ids)), expected)


def test_a_stopped_and_resumed_run_ends_bit_for_bit_as_a_whole_one(finished, tiny_config, tmp_path, monkeypatch):
    stopped = tmp_path / "stopped"
    tiny_config.train.evaluate_every = 0  # does not change the weights
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "StopOnSignal", SignalAt)
        outcome = training.train(tiny_config, stopped)
    assert (outcome.step, outcome.signal) == (5, signal.SIGTERM)
    assert Checkpoints(stopped / workdir.CHECKPOINTS).steps() == [2, 4, 5]
    assert not (stopped / workdir.MODEL).exists()
    assert training.train(tiny_config, stopped).step == 8
    assert arrays_of(stopped, 8) == arrays_of(finished[0], 8)
    assert [row["step"] for row in metrics_of(stopped)] == [2, 4, 6, 8]


def test_a_run_beyond_its_steps_and_a_text_shorter_than_a_window_log_a_warning(
    finished_copy, tiny_config, tmp_path, caplog
):
    tiny_config.train.num_steps = 4
    assert training.train(tiny_config, finished_copy).step == 8
    assert "The run is at step 8, beyond config.train.num_steps=4." in caplog.text
    (tmp_path / "text.txt").write_text("A short text, cut in three. " * 4)
    tiny_config.data.path, tiny_config.data.sequence_length = str(tmp_path / "text.txt"), 400
    registry.make_task(tiny_config).training_batches()
    assert "fewer than config.data.sequence_length=400" in caplog.text


def test_invalid_settings_and_run_directories_are_errors_that_name_them_and_change_nothing(
    finished, make_tiny_config, tmp_path
):
    before = (finished[0] / workdir.CONFIG).read_text()
    for section, name, value, folder in [
        ("train", "num_steps", 0, tmp_path),
        ("train", "log_every", 0, tmp_path),
        ("train", "evaluate_every", -1, tmp_path),
        ("train", "nonfinite", "ignore", tmp_path),
        ("model", "num_layers", 2, finished[0]),  # the run has one layer
    ]:
        config = make_tiny_config()
        config[section][name] = value
        with pytest.raises(ValueError, match=rf"`config\.{section}\.{name}`.*Received: .*{value}"):
            training.train(config, folder)
    assert (finished[0] / workdir.CONFIG).read_text() == before
    expected = rf"`workdir` .*no other training runs.*, in use by process {os.getpid()} on {socket.gethostname()}\."
    with workdir.hold_lock(tmp_path), pytest.raises(ValueError, match=expected):
        training.train(make_tiny_config(), tmp_path)
    with pytest.raises(ValueError, match=r"`path`.*path=nowhere://bucket"):
        training.train(make_tiny_config(), "nowhere://bucket/run")


@pytest.mark.full
def test_a_run_at_an_address_is_read_and_resumed_from_there(finished, tiny_config, tmp_path, monkeypatch):
    address = f"disk://{tmp_path}/bucket/run"
    for number, num_steps in enumerate((4, 8)):
        monkeypatch.setenv(remote_files.CACHE, str(tmp_path / f"machine-{number}"))
        tiny_config.train.num_steps = num_steps
        assert training.train(tiny_config, address).step == num_steps
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "reader"))
    with remote_run.reading(address) as folder:
        assert arrays_of(folder, 8) == arrays_of(finished[0], 8)
        evaluation.evaluate(folder, "validation")
    assert (tmp_path / "bucket" / "run" / "evaluation-validation.json").exists()


@pytest.fixture
def poisoned(monkeypatch):
    """Give the targets of the third step a weight of NaN, in every run."""
    plain = tsa.data.Batches.__getitem__

    def poison(self, step):
        inputs, targets, weights = plain(self, step)
        return inputs, targets, np.full_like(weights, np.nan) if step == 2 else weights

    monkeypatch.setattr(tsa.data.Batches, "__getitem__", poison)


def test_a_nan_loss_ends_the_run(poisoned, make_plain_config, tmp_path):
    config = make_plain_config()
    config.train.update(num_steps=4, checkpoint_every=1, log_every=1)
    message = r"Received: a loss of nan: loss: 1 of 1 .* at step 3. The checkpoint of step 2 is kept. .*=skip to skip"
    with pytest.raises(callbacks.NonfiniteError, match=message):
        training.train(config, tmp_path)
    assert Checkpoints(tmp_path / workdir.CHECKPOINTS).steps() == [1, 2]
    assert not (tmp_path / workdir.MODEL).exists()


@pytest.mark.full
@pytest.mark.parametrize("num_logical_cpus", [1, 2])
def test_replicas_skip_updates_together(poisoned, make_plain_config, tmp_path, caplog, num_logical_cpus):
    config = make_plain_config()
    config.train.update(num_steps=4, log_every=1, nonfinite="skip", num_logical_cpus=num_logical_cpus)
    outcome = training.train(config, tmp_path)
    assert outcome.step == 4 and "Step 3: skipped 1 of 1 updates. Loss: nan" in caplog.text
    assert all(np.isfinite(weight).all() for weight in outcome.model.get_weights())
    rows = [json.loads(row) for row in (tmp_path / workdir.METRICS).read_text().splitlines()]
    assert [row.get("skipped_updates") for row in rows] == [0, 0, 1, 1]
    assert ["loss" in row and np.isfinite(row["loss"]) for row in rows] == [True, True, False, True]


def test_weights_that_are_not_finite_are_not_saved(make_plain_config, tmp_path):
    devices = OneDevice()
    run = training.Run(make_plain_config(), remote_run.open_run(tmp_path), devices, devices.execution(False, 1))
    run.restore()
    run.model.trainable_weights[-1].assign(np.full(run.model.trainable_weights[-1].shape, np.inf))
    with pytest.raises(callbacks.NonfiniteError, match=r"Received: weights .* at step 1. No checkpoint was saved"):
        run.save(1)
    assert Checkpoints(tmp_path / workdir.CHECKPOINTS).steps() == []


@pytest.mark.full
def test_updates_that_are_never_finite_end_the_run():
    class Careful(tsa.optimizers.SkipNonfinite, keras.optimizers.SGD):
        pass

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(Careful(), loss="mse")
    watch = callbacks.LogSkipped(0, 50, lambda step: "", lambda step, why: callbacks.make_error(step, why, 7, True))
    x = np.full((110, 1), np.nan, "float32")
    with pytest.raises(callbacks.NonfiniteError, match=r"100 updates in a row .* at step 100. The .* step 7 is kept"):
        model.fit(x, x, batch_size=1, verbose=0, callbacks=[watch])
