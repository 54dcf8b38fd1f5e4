"""Evaluations of all tasks: settings, files of scores, and partial sums."""

import json
import types
from fnmatch import fnmatch

import pytest

from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import overrides, workdir
from tf_sparse_attention.trainers.shared.devices import OneDevice
from tf_sparse_attention.trainers.shared.evaluation import EvaluationRun, with_overrides

OWN, OTHER = (types.SimpleNamespace(name=name, fingerprint=f"{name} 1") for name in ("books", "poems/long"))


def make_run(folder, config, source, variant=None):
    task = types.SimpleNamespace(source=source, config=config)
    validation = types.SimpleNamespace(task=task, split="test", variant=variant)
    return EvaluationRun(folder, validation, OneDevice())


@pytest.fixture
def folder(tmp_path):
    workdir.save_source(tmp_path, OWN)
    return tmp_path


def test_overrides_change_a_copy_and_another_text_replaces_all_settings_of_the_source():
    config, wanted = base.get_config(), overrides.overridable_settings()
    config.data.update(tfds="pg19", local_dir="books", data_dir="data", source_field="en")
    before = config.to_dict()
    assert with_overrides(config).to_dict() == before
    wanted.data.update(path="poems", batch_size=3)
    wanted.train.jit_compile = False
    found = with_overrides(config, wanted)
    assert config.to_dict() == before
    changed = {"tfds": None, "local_dir": None, "path": "poems", "batch_size": 3}
    assert found.data.to_dict() == {**before["data"], **changed}
    assert found.train.to_dict() == {**before["train"], "jit_compile": False}


def test_scores_of_other_data_have_separate_files_and_partial_sums_are_deleted(folder):
    runs = [make_run(folder, base.get_config(), source) for source in (OWN, OTHER)]
    runs.append(make_run(folder, base.get_config(), OWN, "with_lsh"))
    for run, pattern in zip(runs, ("test", "poems-long-????????-test", "with_lsh-test"), strict=True):
        sums = [run.resumable_sums(), run.resumable_sums("beams", 8)]
        for place, partial in enumerate(sums):
            partial.save(1 + place, {"nats": 1.5})
        assert len(list(folder.glob("*.partial.json"))) == 2
        found = run.write({"nats": 3.0})
        assert found == {"nats": 3.0, "path": str(run.path)} and json.loads(run.path.read_text()) == found
        assert fnmatch(run.path.name, f"evaluation-{pattern}.json") and not list(folder.glob("*.partial.json"))
    assert len({run.path for run in runs}) == 3


def test_partial_sums_are_resumed_only_with_the_same_settings(folder):
    config = base.get_config()
    make_run(folder, config, OWN).resumable_sums("beams", 8).save(2, {"nats": 1.5})
    assert make_run(folder, config, OWN).resumable_sums("beams", 8).load() == (2, {"nats": 1.5})
    assert make_run(folder, config, OWN).resumable_sums("beams", 4).load() == (0, None)
    (partial,) = folder.glob("*.partial.json")
    for damaged in ("[]", "{}", "{"):
        partial.write_text(damaged)
        assert make_run(folder, config, OWN).resumable_sums("beams", 8).load() == (0, None)
    config.data.sequence_length = 7
    assert make_run(folder, config, OWN).resumable_sums("beams", 8).load() == (0, None)
