"""Work folders at an address: which checkpoints count there, and what is lost where a copy is cut off."""

import shutil

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
    """The address of a folder that is not there yet, in two schemes; local copies are in a folder of their own."""
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "cache"))
    address = f"{request.param}://{tmp_path}/bucket/run"
    yield address
    if request.param == "memory":
        remote_files.remote_path(address).rmtree()


@pytest.fixture
def fresh_cache(tmp_path):
    """Function that removes all local copies, as on another machine."""
    return lambda: shutil.rmtree(tmp_path / "cache")


def make_run(address, steps=(), keep=3):
    """A run whose checkpoints hold their step, which are copied."""
    run = RemoteRun(address, keep)
    run.folder.mkdir(parents=True, exist_ok=True)
    workdir.save_config(run.folder, base.get_config())
    for step in steps:
        save(run, step)
        run.upload(step)
    return run


def save(run, step):
    (run.folder / workdir.METRICS).write_text("".join(f'{{"step": {done}}}\n' for done in range(step)))
    run._checkpoints.save(step, {"model/00000 a": keras.Variable(np.full(3, step, "float32"))}, {})


def fetched(address):
    """The step that a fresh copy has, and the number of its metrics."""
    run = RemoteRun(address)
    run.fetch()
    newest = (run._checkpoints.newest_metadata() or {"step": None})["step"]
    if newest is not None:
        variable = keras.Variable(np.zeros(3, "float32"))
        run._checkpoints.load(newest, {"model/00000 a": variable})
        assert variable.numpy().tolist() == [newest] * 3
        assert len((run.folder / workdir.METRICS).read_text().splitlines()) == newest
        assert workdir.load_config(run.folder).task == "language_model"
    return newest


def cut_off(monkeypatch, name, error=ConnectionError):
    """Let the copy of the file of a name end in the middle."""
    write = remote_files._copy

    def half(source, target):
        if name in str(source.name):
            target.write(source.read(20))
            raise error("the line is dead")
        return write(source, target)

    monkeypatch.setattr(remote_files, "_copy", half)


def test_a_fresh_copy_has_the_newest_checkpoint_and_what_belongs_to_it(address, fresh_cache):
    make_run(address, [2, 4])
    fresh_cache()
    assert fetched(address) == 4


def test_a_reader_of_a_run_that_goes_on_keeps_no_more_checkpoints_than_the_run(address, tmp_path, monkeypatch):
    for step in range(1, 6):
        monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "trainer"))
        run = make_run(address)
        save(run, step)
        run.upload(step)
        monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "reader"))
        assert fetched(address) == step
    assert RemoteRun(address)._checkpoints.steps() == [3, 4, 5]


def test_a_new_run_begins_where_nothing_is(address):
    assert fetched(address) is None


@pytest.mark.parametrize("name", ["step_000000004.npz", workdir.METRICS])
def test_a_checkpoint_that_is_half_copied_does_not_count(name, address, fresh_cache, monkeypatch):
    run = make_run(address, [2])
    save(run, 4)
    with monkeypatch.context() as patch:
        cut_off(patch, name, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run.upload(4)
    fresh_cache()
    assert fetched(address) == 2
    again = RemoteRun(address)
    save(again, 4)
    again.upload(4)
    fresh_cache()
    assert fetched(address) == 4


def test_a_first_checkpoint_that_is_half_copied_is_none(address, fresh_cache, monkeypatch):
    run = make_run(address)
    save(run, 2)
    with monkeypatch.context() as patch:
        cut_off(patch, "npz", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run.upload(2)
    fresh_cache()
    assert fetched(address) is None


def damage(path, content=None):
    remote_files.write_bytes(path, remote_files.read_bytes(path)[:-9] + b"?" * 9 if content is None else content)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("step_000000004.npz", "step_000000004.npz is damaged"),
        ("config.json", "config.json is damaged"),
        ("manifest.json", "The checkpoint of step 4 is skipped"),
    ],
)
def test_a_damaged_file_is_named_and_the_checkpoint_before_taken(name, message, address, fresh_cache, caplog):
    run = make_run(address, [2, 4])
    damage(run.path / "checkpoints" / "step_000000004" / name)
    fresh_cache()
    assert fetched(address) == 2
    assert message in caplog.text


def test_a_manifest_with_a_changed_number_is_damaged(address, fresh_cache, caplog):
    path = make_run(address, [2, 4]).path / "checkpoints" / "step_000000004" / "manifest.json"
    damage(path, remote_files.read_bytes(path).replace(b'"step": 4', b'"step": 5'))
    fresh_cache()
    assert fetched(address) == 2
    assert "manifest.json is damaged" in caplog.text


def test_a_missing_file_and_a_missing_manifest_do_not_count(address, fresh_cache):
    run = make_run(address, [2, 4, 6])
    for name in ("step_000000004/step_000000004.npz", "step_000000006/manifest.json"):
        remote_files.remove(run.path / "checkpoints" / name)
    fresh_cache()
    assert fetched(address) == 2


def test_only_damaged_checkpoints_are_an_error(address, fresh_cache):
    run = make_run(address, [2])
    damage(run.path / "checkpoints" / "step_000000002" / "step_000000002.npz")
    fresh_cache()
    with pytest.raises(ValueError, match=r"`workdir` must have a checkpoint that can be read.*Received: 1 damaged"):
        RemoteRun(address).fetch()


def test_old_checkpoints_are_removed_once_a_newer_one_counts(address, monkeypatch):
    run = make_run(address, [2, 4], keep=2)
    save(run, 6)
    with monkeypatch.context() as patch:
        cut_off(patch, "npz")
        run.upload(6)
    assert run._steps() == [2, 4, 6]
    run.upload(6)
    assert run._steps() == [4, 6]


def test_a_copy_that_fails_is_logged_tried_again_and_an_error_at_the_end(address, fresh_cache, monkeypatch, caplog):
    run = make_run(address, [2])
    with monkeypatch.context() as patch:
        cut_off(patch, "npz")
        for step in (4, 6):
            save(run, step)
            run.upload(step)
        assert caplog.text.count("the line is dead") == 2
        with pytest.raises(remote_files.RemoteError, match=f"The checkpoint of step 6 is in {run.folder}, but not"):
            run.finish(6)
    again = RemoteRun(address)
    again.fetch()  # which keeps what is newer here
    again.finish(6)
    fresh_cache()
    assert fetched(address) == 6


def test_a_local_copy_of_another_run_is_an_error(address, fresh_cache, tmp_path):
    run = make_run(address, [2])
    shutil.copytree(run.folder, tmp_path / "kept")
    run.path.rmtree()
    with pytest.raises(ValueError, match=rf"remove {run.folder} .* with no checkpoint there"):
        RemoteRun(address).fetch()
    fresh_cache()
    make_run(address, [2])
    fresh_cache()
    shutil.copytree(tmp_path / "kept", run.folder)
    with pytest.raises(ValueError, match=rf"remove {run.folder} .* with another run there"):
        RemoteRun(address).fetch()


def test_figures_and_the_model_are_copied_too(address):
    run = make_run(address, [2])
    (run.folder / "tensorboard" / "train").mkdir(parents=True)
    (run.folder / "tensorboard" / "train" / "events").write_text("figures")
    (run.folder / "model.keras").write_text("a model")
    run.finish(2)
    assert remote_files.read_bytes(run.path / "tensorboard" / "train" / "events") == b"figures"
    assert remote_files.read_bytes(run.path / "model.keras") == b"a model"
    assert len(remote_files.read_bytes(run.path / "metrics.jsonl").splitlines()) == 2


def test_what_readers_write_is_copied(address, fresh_cache):
    make_run(address, [2])
    fresh_cache()
    for text in ("first", "second"):
        with remote_run.reading(address) as folder:
            assert workdir.load_config(folder).task == "language_model"
            (folder / "evaluation-test.json").write_text(text)
            (folder / "saved_model" / "variables").mkdir(parents=True, exist_ok=True)
            (folder / "saved_model" / "variables" / text).write_text(text)
            (folder / "saved_model" / "saved_model.pb").write_text(text)
            if text == "second":
                (folder / "saved_model" / "variables" / "first").unlink()
    place = remote_files.remote_path(address)
    assert remote_files.read_bytes(place / "evaluation-test.json") == b"second"
    assert remote_files.read_bytes(place / "saved_model" / "saved_model.pb") == b"second"
    assert remote_files.names(place / "saved_model" / "variables") == ["second"]
    assert remote_files.names(place) == ["checkpoints", "evaluation-test.json", "saved_model"]


def test_readers_of_an_address_without_a_checkpoint_are_told(address):
    with (
        pytest.raises(ValueError, match=rf"`workdir` must hold a checkpoint with a manifest.*{address}"),
        remote_run.reading(address),
    ):
        pass


def test_a_folder_on_the_disk_is_read_as_it_is(tmp_path):
    with remote_run.reading(tmp_path) as folder:
        assert folder is tmp_path
    assert type(remote_run.open_run(tmp_path)) is remote_run.LocalRun


def test_paths_of_the_tests_are_those_of_epath(address):
    assert isinstance(remote_files.remote_path(address), remote_paths.RemotePath)
    assert str(remote_files.remote_path(address) / "a") == f"{address}/a"
