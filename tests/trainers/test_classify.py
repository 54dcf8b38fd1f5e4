"""Task "classify": training, bit-exact resumption, scores, predictions, and invalid settings."""

import functools
import json

import keras
import numpy as np
import pytest

from tests.trainers.eager import EAGER
from tests.trainers.interrupted import check_resumed_run, stop_evaluation
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceClassifier
from tf_sparse_attention.trainers.configs import classify
from tf_sparse_attention.trainers.shared import evaluation, exporting, overrides, training, workdir
from tf_sparse_attention.trainers.tasks import classify as classification
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import Request

pytestmark = EAGER

WORDS = {"fruit": ["apple", "pear", "plum"], "tool": ["saw", "nail", "drill"], "beast": ["cat", "cow", "hen"]}


@pytest.fixture(scope="module")
def lines():
    """Generated texts of several lengths, one of which is truncated."""
    random, found = np.random.default_rng(0), []
    for number in range(30):
        label = list(WORDS)[number % 3]
        words = random.choice(WORDS[label], 60 if number == 4 else random.integers(2, 24))
        split = "train" if number < 18 else "validation" if number < 23 else "test"
        found.append({"text": " ".join(words), "label": label, "split": split})
    return found


@pytest.fixture(scope="module")
def path(lines, tmp_path_factory):
    path = tmp_path_factory.mktemp("labeled") / "labeled.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def make_config(path, data_dir):
    def make(variant="full"):
        config = classify.get_config(variant)
        config.data.update(path=str(path), data_dir=str(data_dir), tokenizer="bytes", vocabulary=None)
        config.data.update(sequence_length=128, batch_size=2)
        config.model.update(num_layers=1, hidden_dim=16, intermediate_dim=16)
        config.model.attention = [{**part, "num_heads": 1, "key_dim": 8} for part in classify.VARIANTS[variant]]
        config.train.update(num_steps=2, log_every=1, evaluate_every=2, checkpoint_every=2, evaluation_windows=0)
        config.train.update(deterministic=False, jit_compile=False)
        return config

    return make


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """A run directory. Tests may add files."""
    folder = tmp_path_factory.mktemp("finished")
    training.train(make_config(), folder)
    return folder


def scores_by_hand(task, model, lines):
    """Compute loss, accuracy and macro F1 text by text, with metrics of Keras."""
    labels = sorted(WORDS)
    true = np.array([labels.index(line["label"]) for line in lines])
    rows = [np.concatenate([[0], task.tokenizer.tokenize(line["text"]), [1]])[None, :128] for line in lines]
    logits = np.concatenate([keras.ops.convert_to_numpy(model(row.astype("int32"))) for row in rows])
    f1, loss = keras.metrics.F1Score("macro"), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    f1.update_state(np.eye(3)[true], logits)
    return float(loss(true, logits)), float(np.mean(logits.argmax(-1) == true)), float(f1.result())


def test_every_text_is_scored_once(finished, lines):
    task, model = registry.load_task(finished), workdir.load_model(finished)
    scores = evaluation.evaluate(finished, "train")
    given = [line for line in lines if line["split"] == "train"]
    found = scores["loss"], scores["accuracy"], scores["macro_f1"]
    np.testing.assert_allclose(found, scores_by_hand(task, model, given), rtol=1e-4)
    assert (scores["texts"], scores["cut"], scores["labels"]) == (18, 1, ["beast", "fruit", "tool"])
    assert np.sum(scores["confusion"], axis=1).tolist() == [6, 6, 6]
    assert json.loads((finished / "evaluation-train.json").read_text()) == scores
    assert f"accuracy              {scores['accuracy']:.4f} of 3 classes" in evaluation.as_text(scores)


def test_validation_has_the_scores_of_its_split(finished, lines):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if "validation/loss" in row]
    given = [line for line in lines if line["split"] == "validation"]
    expected = scores_by_hand(registry.load_task(finished), workdir.load_model(finished), given)
    found = [row[f"validation/{name}"] for name in ("loss", "accuracy", "macro_f1")]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.full
def test_a_killed_evaluation_resumes(finished, monkeypatch):
    expected = evaluation.evaluate(finished, "test")
    stop_evaluation(monkeypatch, chunk=1, call=2)
    with pytest.raises(KeyboardInterrupt):
        evaluation.evaluate(finished, "test")
    found = evaluation.evaluate(finished, "test")
    assert found["confusion"] == expected["confusion"] and found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert not list(finished.glob("*.partial.json"))


def test_the_loss_of_training_is_the_mean_over_texts_whatever_the_batches(finished):
    task, model = registry.load_task(finished), workdir.load_model(finished)
    # All texts have the same logits: -log p is log 1.5 for class 1 and log 6 for the others.
    for weight in model.trainable_variables:
        weight.assign(keras.ops.zeros_like(weight))
    model.trainable_variables[-1].assign(np.log([1.0, 4.0, 1.0]))
    model.compile(**task.compile_arguments(), run_eagerly=True)
    buckets = task.open_buckets("train", 5)  # in batches of 2 and 4 rows, one of which is not full
    classes = [int(buckets.classes[number]) for number in buckets.chosen]
    rows = [len(rows.items) for rows in buckets.plans()]
    assert sum(rows) > len(classes) and len(set(rows)) > 1
    wanted = np.mean([np.log(1.5) if number == 1 else np.log(6) for number in classes])
    found = model.evaluate(buckets.evaluation_batches().dataset(), verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(wanted, rel=1e-5)


def test_rows_that_fill_a_batch_are_in_no_total(finished):
    scorer = classification.Validation(registry.load_task(finished), workdir.load_model(finished), "validation")
    rows = np.array([[1, 0.5, 2, 0], [0, 9, 0, 0], [1, 0.25, 2, 0], [1, 0.25, 1, 1]])
    totals = scorer.totals(rows)
    assert totals["nats"] == 1 and totals["confusion"].tolist() == [[0, 0, 0], [0, 1, 0], [2, 0, 0]]
    assert scorer.totals(rows[:0])["confusion"].tolist() == [[0] * 3] * 3


def test_f1_counts_classes_without_texts_as_nothing():
    found = classification.class_scores(6.0, np.array([[2, 1, 0], [0, 1, 0], [0, 0, 0]]))
    # 2 / 2 + 1 of class 0: precision 1, recall 2/3; of class 1 precision 1/2, recall 1; class 2 has none.
    assert found == {"loss": 1.5, "accuracy": 0.75, "macro_f1": pytest.approx((0.8 + 2 / 3 + 0) / 3)}


def test_a_prompt_gets_its_labels_with_probabilities(finished):
    task, model = registry.load_task(finished), workdir.load_model(finished)
    made = task.generate(model, Request(prompt=b"saw nail", path=finished))
    ids = np.concatenate([[0], task.tokenizer.tokenize("saw nail"), [1]])[None].astype("int32")
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(ids)))[0]
    (sample,) = made.samples
    found = [sample["probabilities"][label] for label in task.labels]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert sample["label"] == task.labels[expected.argmax()] and sample["num_tokens"] == 9
    assert made.text.splitlines()[0] == f"{expected.max():.4f}  {sample['label']}"
    assert json.loads((finished / "samples.jsonl").read_text()) == sample


@pytest.mark.full
def test_the_exported_model_classifies_without_the_library(finished):
    task = registry.load_task(finished)
    result = exporting.export(finished, jit_compile=False)
    (expected,) = task.generate(workdir.load_model(finished), Request(prompt=b"def main():")).samples
    found = dict(zip(task.labels, result["probabilities"], strict=True))
    assert found == pytest.approx(expected["probabilities"], rel=1e-4)
    assert result["label"] == expected["label"]
    assert f"library, 'def main():' is '{expected['label']}' with probability 0." in result["test_result"]


def test_tensorboard_shows_texts_with_both_labels(finished, lines):
    task, model = registry.load_task(finished), workdir.load_model(finished)
    shown = task.validation(task, model, "validation").examples()
    given = {line["text"]: line["label"] for line in lines}
    assert len(shown.texts) == classification.NUM_SHOWN
    for text in shown.texts.values():
        head, _, body = text.partition("\n\n")
        assert head.endswith(f"true {given[body]}") and head.startswith("predicted ")


@pytest.mark.full
def test_a_run_that_was_stopped_ends_as_one_that_was_not(make_config, tmp_path, monkeypatch):
    config = make_config("improved")
    check_resumed_run(config, tmp_path, monkeypatch)


def test_a_classifier_can_begin_with_the_encoder_of_a_masked_language_model(make_config, tmp_path):
    config = make_config()
    backbone = functools.partial(Backbone, 258, 1, 16, classify.VARIANTS["clustered"], 16)
    LanguageModel(backbone(causal=False)).save(tmp_path / "model.keras")
    config.model.start_from = str(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"`config\.model\.attention` must be unset with config\.model\.start_from"):
        registry.make_task(config).make_model()
    config.model.update(num_layers=None, hidden_dim=None, intermediate_dim=None, attention=[])
    model = registry.make_task(config).make_model()
    assert isinstance(model, SequenceClassifier)
    saved = keras.models.load_model(tmp_path / "model.keras").backbone
    for found, expected in zip(model.encoder.weights, saved.weights, strict=True):
        np.testing.assert_array_equal(found, expected)
    Backbone(99, 1, 16, classify.VARIANTS["clustered"], causal=False).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"`config\.data\.tokenizer` must be .*: 258 ids, but the model has 99"):
        registry.make_task(config).make_model()
    Backbone(258, 1, 16, classify.VARIANTS["local"]).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"`config\.model\.start_from` must be an `Encoder`, a bidirectional `Back"):
        registry.make_task(config).make_model()


def test_subwords_of_labeled_texts_are_those_of_the_texts(make_config, lines):
    source = registry.text_source(make_config())
    documents = source.documents("train")
    assert source.name.startswith("json_lines/labeled")
    assert {text.decode() for text in documents} == {line["text"] for line in lines if line["split"] == "train"}


def test_other_labels_are_not_those_of_the_run(finished, make_config, lines, tmp_path):
    changed = [{**line, "label": line["label"].upper()} for line in lines]
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, changed)), encoding="utf-8")
    config = make_config()
    config.data.update(path=str(tmp_path / "other.jsonl"), data_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"`config\.data` must match the labels of .*\['BEAST', 'FRUIT"):
        workdir.check_state(finished, registry.make_task(config).get_state())
    wanted = overrides.overridable_settings()
    wanted.data.update(path=str(tmp_path / "other.jsonl"), data_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"must be among the training labels: 'beast', 'fruit', 'tool'\. Received: '"):
        evaluation.evaluate(finished, "test", wanted)
    one = [{**line, "label": "all"} for line in lines]
    (tmp_path / "one.jsonl").write_text("\n".join(map(json.dumps, one)), encoding="utf-8")
    config.data.path = str(tmp_path / "one.jsonl")
    with pytest.raises(ValueError, match=r"`config\.data` must have at least two labels\. Received: \['all'\]"):
        registry.make_task(config).make_model()


def test_requests_and_settings_that_do_not_fit_classes_are_errors_that_name_them(finished, make_config, tmp_path):
    for request, name in [
        (Request(), "prompt"),
        (Request(prompt=b"a", num_samples=2), "num_samples"),
        (Request(prompt=b"a", length=3), "length"),
        (Request(prompt=b"a", complete="test"), "complete"),
        (Request(prompt=b"a", settings={"top_p": 0.5}), "top_p"),
    ]:
        with pytest.raises(ValueError, match=f"`{name}`"):
            registry.load_task(finished).generate(None, request)
    config = make_config()
    config.model.causal = True
    with pytest.raises(ValueError, match=r"`config\.model\.causal`"):
        registry.make_task(config)
    config = make_config()
    config.model.num_layers = None
    with pytest.raises(ValueError, match=r"`config\.model` must have num_layers, or start_from"):
        registry.make_task(config).make_model()
    workdir.save_config(tmp_path, config)
    with pytest.raises(ValueError, match=r"`workdir` must hold task\.json"):
        registry.load_task(tmp_path)
