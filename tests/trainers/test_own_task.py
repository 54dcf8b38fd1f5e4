"""Custom tasks: the two files in the section of docs/tasks.md are sufficient for a run."""

import json
import re
import types

import keras
import pytest

import tf_sparse_attention as tsa
from tests.pages import DOCS, blocks
from tests.trainers import task_runs
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation, training, workdir
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import Task

SECTION = (DOCS / "tasks.md").read_text(encoding="utf-8").partition("\n## Custom tasks\n")[2]
FILES = ("smoothed.py", "smoothed_config.py")


@pytest.fixture
def get_config(tmp_path, monkeypatch):
    """The function `get_config` of the page. Its task is importable."""
    assert all(f"`{name}`" in SECTION for name in FILES)
    for name, code in zip(FILES, blocks(SECTION, "python"), strict=True):
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    names = {}
    exec((tmp_path / FILES[1]).read_text(encoding="utf-8"), names)
    return names["get_config"]


def test_the_table_has_the_members_of_every_task():
    rows = re.findall(r"^\| (`.*?`) \|", SECTION, re.MULTILINE)
    named = {re.match(r"\w+", name)[0] for row in rows for name in re.findall("`(.*?)`", row)}
    members = {name for name in (*vars(Task), *Task.__annotations__) if not name.startswith("_")}
    assert named == members and len(named) <= 10
    for name in registry.NAMES:
        assert all(hasattr(registry.find_task_class(name), part) for part in named), name


def test_a_custom_task_is_loaded_by_its_name_and_reads_only_its_settings(get_config, tmp_path, monkeypatch):
    config = get_config("tiny")
    task = registry.make_task(config)
    assert task.compile_arguments()["loss"].label_smoothing == 0.1 and task.tokenizer.vocabulary_size == 258
    folder = task_runs.write_run(tmp_path / "run", task_runs.make_language_model_config())
    workdir.save_config(folder, config)
    assert type(registry.load_task(folder)) is type(task)
    for name, message in [
        ("generated_targets", "must be unset for task=smoothed"),
        ("confidence", r"must be unset .* Received: confidence=3"),
        ("num_step", r"must be unset .* Did you mean `num_steps`\?"),
    ]:
        config = get_config("tiny")
        config.train[name] = 3
        with pytest.raises(ValueError, match=rf"`config\.train\.{name}` {message}"):
            registry.make_task(config)
    config, settings = get_config("tiny"), type(task).settings
    monkeypatch.setattr(type(task), "settings", {**settings, "train": ["evaluation_window"]})
    with pytest.raises(ValueError, match=r"`Task.settings` .* Did you mean `evaluation_windows`"):
        registry.make_task(config)
    monkeypatch.setattr(type(task), "settings", {**settings, "train": (*settings["train"], "confidence")})
    config.train.confidence = 0.9
    assert registry.make_task(config).config.train.confidence == 0.9


def test_missing_members_are_named_and_may_be_attributes_of_the_task(monkeypatch):
    class Unfinished(Task):
        settings, source = {}, None

    class Complete(Unfinished):
        def __init__(self, config, state=None):
            super().__init__(config, state)
            self.source = self.validation = "any"

    config = base.get_config()
    monkeypatch.setattr(registry, "find_task_class", lambda name: Unfinished)
    with pytest.raises(ValueError, match=r"`config.task` must be a module whose class `Unfinished` has `validation`"):
        registry.make_task(config)
    for call in (
        lambda task: task.make_model(),
        lambda task: task.generate(None, None),
        lambda task: task.export(*"abcd"),
    ):
        with pytest.raises(ValueError, match=r"class `Unfinished` has `\w+`, .* Received: .*test_own_task, without it"):
            call(Unfinished(config))
    monkeypatch.setattr(registry, "find_task_class", lambda name: Complete)
    assert registry.make_task(config).source == "any"


def test_wrong_members_of_a_validation_are_named():
    class Rows(evaluation.Validation):
        columns = ("nats", "tokens")
        task = types.SimpleNamespace(config=base.get_config())
        model = tsa.models.LanguageModel(
            tsa.models.Backbone(9, 1, 4, [{"layer": "DenseAttention", "num_heads": 1, "key_dim": 4}])
        )

        def __init__(self):
            pass

    for name in ("batches", "score_rows", "metrics", "describe"):
        with pytest.raises(ValueError, match=f"class `Rows` has `{name}`"):
            evaluation.Evaluator(Rows(), None, {})
        setattr(Rows, name, lambda self, *arguments: {"accuracy": 1.0})
    with pytest.raises(ValueError, match=r"`metrics` must return 'loss' .* Received: accuracy"):
        evaluation._metrics(Rows(), {})
    Rows.score_rows = lambda self, model, inputs, targets, weights: [targets, targets[:, 0]]
    batch = dict.fromkeys(("inputs", "targets", "weights"), keras.ops.ones((2, 3)))
    with pytest.raises(ValueError, match=r"`score_rows` must .* of nats, tokens\..* \[\(2, 3\), \(2,\)\]"):
        evaluation.Scorer(Rows(), 2)(batch)


def test_a_module_without_a_task_is_an_error():
    for name in ("json", "no_such.task", "no_such_task", "", ".relative"):
        config = base.get_config()
        config.task = name
        with pytest.raises(ValueError, match=rf"`config\.task`.* Received: task={re.escape(name)}\."):
            registry.make_task(config)


@pytest.mark.full
def test_a_custom_task_is_trained_resumed_and_scored(get_config, make_plain_config, tmp_path):
    config, own = make_plain_config(), get_config("tiny")
    config.update(task=own.task)
    config.train.label_smoothing = own.train.label_smoothing
    training.train(config, tmp_path / "run")
    config.train.num_steps = 3
    assert training.train(config, tmp_path / "run").step == 3
    found = evaluation.evaluate(tmp_path / "run", "test")
    assert json.loads((tmp_path / "run" / "evaluation-test.json").read_text()) == found
    assert evaluation.as_text(found)
