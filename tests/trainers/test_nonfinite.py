"""Training with nonfinite losses or weights."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import nonfinite, remote_run, training, workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints
from tf_sparse_attention.trainers.shared.devices import OneDevice


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
    with pytest.raises(nonfinite.NonfiniteError, match=message):
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
    with pytest.raises(nonfinite.NonfiniteError, match=r"Received: weights .* at step 1. No checkpoint was saved"):
        run.save(1)
    assert Checkpoints(tmp_path / workdir.CHECKPOINTS).steps() == []


def test_updates_that_are_never_finite_end_the_run():
    class Careful(tsa.optimizers.SkipNonfinite, keras.optimizers.SGD):
        pass

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(Careful(), loss="mse")
    watch = nonfinite.LogSkipped(0, 50, lambda step: "", lambda step, why: nonfinite.make_error(step, why, 7, True))
    x = np.full((110, 1), np.nan, "float32")
    with pytest.raises(nonfinite.NonfiniteError, match=r"100 updates in a row .* at step 100. The .* step 7 is kept"):
        model.fit(x, x, batch_size=1, verbose=0, callbacks=[watch])


def test_the_first_weight_that_is_not_finite_is_named():
    weights = [keras.Variable(np.ones(2, dtype), dtype=dtype, name=f"of_{dtype}") for dtype in ("int32", "float32")]
    assert nonfinite.find_weight(weights) is None
    weights[1].assign(ops.stack([1.0, np.inf]))
    assert nonfinite.find_weight(weights) == "of_float32"
