"""Every task at toy size: its data are made up once, the task opens them, and the table adds up."""

import pytest

from benchmarks.tasks import __main__ as program
from benchmarks.tasks import made
from tf_sparse_attention.trainers.configs import toys
from tf_sparse_attention.trainers.tasks import registry


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    made.write_all(folder)
    return folder


def test_data_are_the_same_every_time_and_existing_files_stay(folder, tmp_path):
    (tmp_path / "pairs.jsonl").write_text("mine")
    made.write_all(tmp_path)
    assert (tmp_path / "pairs.jsonl").read_text() == "mine"
    for name in ("labeled.jsonl", "spoken/test/000.wav", "text/train/007.txt"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("task", toys.VARIANTS)
def test_a_task_opens_its_data(task, folder):
    config = toys.get_config(task)
    config.data.update(path=str(folder / config.data.path.removeprefix(f"{toys.FOLDER}/")), data_dir=str(folder))
    assert registry.make_task(config).training_batches()[0] is not None


@pytest.mark.large
@pytest.mark.parametrize("task", toys.VARIANTS)
def test_a_task_is_trained_killed_resumed_scored_generates_and_is_exported(task, tmp_path, capsys):
    program.main([f"--workdir={tmp_path}", "--tasks", task])
    said = capsys.readouterr().out
    assert f"{task}: trained, killed after a checkpoint and resumed" in said
    assert ("loaded in a process without the library" in said) == (task not in program.CANNOT_WRITE)
