"""Run directories at an address: valid checkpoints, and interrupted uploads."""

import types

import keras
import numpy as np
import pytest

from tests import remote_paths
from tf_sparse_attention import remote_files
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import remote_run, workdir
from tf_sparse_attention.trainers.shared.remote_run import RemoteRun


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.full)])
def address(request, tmp_path, monkeypatch):
    """Address of a folder that does not exist yet, in two schemes."""
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(remote_run.tempfile, "tempdir", str(tmp_path))
    return f"{request.param}://{tmp_path}/bucket/run"


def make_run(address, steps=(), keep=3):
    """Create a run, and upload checkpoints of these steps with the step as value."""
    run = RemoteRun(address, keep)
    workdir.save_config(run.folder, base.get_config())
    for step in steps:
        save(run, step)
        run.upload(step)
    return run


def save(run, step):
    (run.folder / workdir.METRICS).write_text("".join(f'{{"step": {done}}}\n' for done in range(step)))
    run._checkpoints.save(step, {"model/a": keras.Variable(np.full(3, step, "float32"))}, {}, run.files())


def fetched(address):
    """Return the step that a new process fetches, after checks of the files of the run."""
    run = RemoteRun(address)
    run.fetch()
    newest = (run._checkpoints.newest_metadata() or {"step": None})["step"]
    if newest is not None:
        variable = keras.Variable(np.zeros(3, "float32"))
        run._checkpoints.load(newest, {"model/a": variable})
        assert variable.numpy().tolist() == [newest] * 3
        assert len((run.folder / workdir.METRICS).read_text().splitlines()) == newest
        assert workdir.load_config(run.folder).task == "language_model"
    return newest


def read(path):
    with path.open("rb") as file:
        return file.read()


def cut_off(monkeypatch, error=ConnectionError):
    def half(source, target, length):
        target.write(source.read(20))
        raise error("the line is dead")

    monkeypatch.setattr(remote_files, "shutil", types.SimpleNamespace(copyfileobj=half))


def remote(address, step):
    return remote_files.remote_path(address) / "checkpoints" / f"step_{step:09d}.npz"


def test_an_incomplete_upload_is_skipped(address, monkeypatch, caplog):
    run = make_run(address, [2])
    save(run, 4)
    with monkeypatch.context() as patch:
        cut_off(patch, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run.upload(4)
    assert fetched(address) == 2
    assert not remote_files.exists(remote(address, 4)) or "step_000000004.npz is damaged and skipped" in caplog.text
    run.upload(4)
    assert fetched(address) == 4


def test_the_newest_checkpoint_without_a_flipped_bit_is_fetched_with_the_files_of_the_run(address, caplog):
    assert fetched(address) is None  # a new run
    make_run(address, [2, 4])
    assert fetched(address) == 4
    content = read(remote(address, 4))
    for position in (100, -2000, -30):
        damaged = bytearray(content)
        damaged[position] ^= 1
        remote_files.write_bytes(remote(address, 4), bytes(damaged))
        caplog.clear()
        assert fetched(address) == 2
        assert "step_000000004.npz is damaged and skipped" in caplog.text
    remote_files.write_bytes(remote(address, 2), b"?")
    with pytest.raises(ValueError, match=r"`workdir`.*Received: 2 damaged"):
        RemoteRun(address).fetch()


def test_old_checkpoints_are_removed_once_a_newer_one_is_uploaded(address, monkeypatch):
    run = make_run(address, [2, 4], keep=2)
    save(run, 6)
    with monkeypatch.context() as patch:
        cut_off(patch)
        run.upload(6)
    assert {2, 4} <= {*run._steps()}
    run.upload(6)
    assert run._steps() == [4, 6]


def test_a_failed_upload_is_logged_and_retried_and_an_error_at_the_end(address, monkeypatch, caplog):
    run = make_run(address, [2])
    with monkeypatch.context() as patch:
        cut_off(patch)
        for step in (4, 6):
            save(run, step)
            run.upload(step)
        assert caplog.text.count("the line is dead") == 2
        with pytest.raises(remote_files.RemoteError, match=f"The checkpoint of step 6 is only in {run.folder}"):
            run.finish(6)
    assert run._checkpoints.path(6).exists()
    run.finish(6)
    assert fetched(address) == 6 and not run.folder.exists()


def test_metrics_and_the_model_are_uploaded_at_the_end(address):
    run = make_run(address, [2])
    (run.folder / "tensorboard" / "train").mkdir(parents=True)
    (run.folder / "tensorboard" / "train" / "events").write_text("figures")
    (run.folder / "model.keras").write_text("a model")
    run.finish(2)
    assert read(run.path / "tensorboard" / "train" / "events") == b"figures"
    assert read(run.path / "model.keras") == b"a model"
    assert len(read(run.path / "metrics.jsonl").splitlines()) == 2


def test_files_that_readers_write_are_uploaded(address):
    make_run(address, [2])
    for text in ("first", "second"):
        with remote_run.reading(address) as folder:
            assert workdir.load_config(folder).task == "language_model"
            (folder / "evaluation-test.json").write_text(text)
            (folder / "saved_model" / "variables").mkdir(parents=True)
            (folder / "saved_model" / "variables" / text).write_text(text)
            (folder / "saved_model" / "saved_model.pb").write_text(text)
        assert not folder.exists()
    run_dir = remote_files.remote_path(address)
    assert read(run_dir / "evaluation-test.json") == b"second"
    assert read(run_dir / "saved_model" / "saved_model.pb") == b"second"
    assert remote_files.names(run_dir / "saved_model" / "variables") == ["second"]
    assert remote_files.names(run_dir) == ["checkpoints", "evaluation-test.json", "saved_model"]


def test_two_readers_of_one_checkpoint_have_separate_files(address):
    make_run(address, [2])
    with remote_run.reading(address) as first:
        (first / "one.json").write_text("1")
        with remote_run.reading(address) as second:
            (second / "two.json").write_text("2")
        assert not second.exists() and (first / "one.json").exists()
    assert remote_files.names(remote_files.remote_path(address)) == ["checkpoints", "one.json", "two.json"]


def test_an_interrupted_reader_finds_its_files_until_the_next_checkpoint(address):
    run, seen = make_run(address, [2]), []
    for step in (4, None):
        with pytest.raises(KeyError), remote_run.reading(address) as folder:
            seen.append(sorted(path.name for path in folder.glob("*.partial.*")))
            (folder / "sums.partial.json").write_text("{}")
            raise KeyError
        with pytest.raises(KeyError), remote_run.reading(address) as folder:
            seen.append(sorted(path.name for path in folder.glob("*.partial.*")))
            raise KeyError
        if step:
            save(run, step)
            run.upload(step)
    assert seen == [[], ["sums.partial.json"]] * 2


def test_an_address_without_a_checkpoint_is_an_error_for_readers(address):
    assert isinstance(remote_files.remote_path(address), remote_paths.RemotePath)
    with pytest.raises(ValueError, match=rf"`workdir`.*Received: workdir={address}"), remote_run.reading(address):
        pass
