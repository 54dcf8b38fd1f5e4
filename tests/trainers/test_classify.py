"""Task "classify": scores, predictions, and models that start from an encoder."""

import functools
import json

import keras
import numpy as np
import pytest

from tests.trainers import task_runs
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceClassifier
from tf_sparse_attention.trainers.configs import classify
from tf_sparse_attention.trainers.shared import evaluation, workdir
from tf_sparse_attention.trainers.tasks import classify as classification
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import Request

TASK = "classify"
LINES = task_runs.draw_lines(TASK)


def test_every_text_is_scored_once(run, task, model):
    scores = evaluation.evaluate(run, "validation")
    labels, lines = sorted(task_runs.CLASSES), [line for line in LINES if line["split"] == "validation"]
    true = np.array([labels.index(line["label"]) for line in lines])
    rows = [np.concatenate([[0], task.tokenizer.tokenize(line["text"]), [1]])[None, :128] for line in lines]
    logits = np.concatenate([keras.ops.convert_to_numpy(model(row.astype("int32"))) for row in rows])
    f1, loss = keras.metrics.F1Score("macro"), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    f1.update_state(np.eye(3)[true], logits)
    assert scores["loss"] == pytest.approx(float(loss(true, logits)), rel=1e-4)
    assert scores["accuracy"] == pytest.approx(np.mean(logits.argmax(-1) == true))
    assert scores["macro_f1"] == pytest.approx(float(f1.result()), rel=1e-4)
    assert (scores["texts"], scores["cut"], scores["labels"]) == (5, 0, ["beast", "fruit", "tool"])
    assert np.sum(scores["confusion"], axis=1).tolist() == np.bincount(true).tolist()
    assert task.open_buckets("train").num_cut == 1
    assert f"accuracy              {scores['accuracy']:.4f} of 3 classes" in evaluation.as_text(scores)


def test_the_loss_of_training_is_the_mean_over_texts_whatever_the_batches(run, task):
    model = workdir.load_model(run)
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


def test_rows_that_fill_a_batch_are_in_no_total_and_f1_counts_classes_without_texts_as_nothing(task, model):
    scorer = classification.Validation(task, model, "validation")
    rows = np.array([[1, 0.5, 2, 0], [0, 9, 0, 0], [1, 0.25, 2, 0], [1, 0.25, 1, 1]])
    totals = scorer.totals(rows)
    assert totals["nats"] == 1 and totals["confusion"].tolist() == [[0, 0, 0], [0, 1, 0], [2, 0, 0]]
    assert scorer.totals(rows[:0])["confusion"].tolist() == [[0] * 3] * 3
    found = classification.class_scores(6.0, np.array([[2, 1, 0], [0, 1, 0], [0, 0, 0]]))
    # 2 / 2 + 1 of class 0: precision 1, recall 2/3; of class 1 precision 1/2, recall 1; class 2 has none.
    assert found == {"loss": 1.5, "accuracy": 0.75, "macro_f1": pytest.approx((0.8 + 2 / 3 + 0) / 3)}


def test_a_prompt_gets_its_labels_with_probabilities(run, task, model):
    made = task.generate(model, Request(prompt=b"saw nail", path=run))
    ids = np.concatenate([[0], task.tokenizer.tokenize("saw nail"), [1]])[None].astype("int32")
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(ids)))[0]
    (sample,) = made.samples
    found = [sample["probabilities"][label] for label in task.labels]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert sample["label"] == task.labels[expected.argmax()] and sample["num_tokens"] == 9
    assert made.text.splitlines()[0] == f"{expected.max():.4f}  {sample['label']}"
    assert json.loads((run / "samples.jsonl").read_text()) == sample


def test_tensorboard_shows_texts_with_both_labels(task, model):
    shown = task.validation(task, model, "validation").examples()
    given = {line["text"]: line["label"] for line in LINES}
    assert len(shown.texts) == classification.NUM_SHOWN
    for text in shown.texts.values():
        head, _, body = text.partition("\n\n")
        assert head.endswith(f"true {given[body]}") and head.startswith("predicted ")


@pytest.mark.full
def test_a_classifier_can_begin_with_the_encoder_of_a_masked_language_model(make_task_config, tmp_path):
    config = make_task_config("classify")
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


def test_a_split_needs_two_labels_and_a_run_its_state(make_task_config, tmp_path):
    config = make_task_config("classify")
    workdir.save_config(tmp_path, config)
    with pytest.raises(ValueError, match=r"`workdir` must hold task\.json"):
        registry.load_task(tmp_path)
    config.data.path = str(task_runs.write_lines(tmp_path / "one.jsonl", [{**line, "label": "all"} for line in LINES]))
    with pytest.raises(ValueError, match=r"`config\.data` must have at least two labels\. Received: \['all'\]"):
        registry.make_task(config).make_model()
