"""Tasks "translate" and "answer": scores, generated targets and samples."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.trainers import task_runs
from tf_sparse_attention import audit
from tf_sparse_attention.models.generator import Row
from tf_sparse_attention.trainers.configs import base, translate_documents
from tf_sparse_attention.trainers.shared import evaluation, workdir
from tf_sparse_attention.trainers.tasks import pairs, registry

TASK = "translate"
LINES = {task: task_runs.draw_lines(task) for task in ("translate", "answer")}


@pytest.fixture(scope="module", autouse=True)
def without_compilation():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workdir, "load_model", task_runs.load_model)
        yield


@pytest.fixture(scope="module")
def scores(run):
    wanted = base.overridable_settings()
    wanted.train.generated_targets, wanted.generate.length = 2, 3
    return evaluation.evaluate(run, "test", wanted)


def nats_of(task, model, line, use_source):
    """Return the nats of a target, from the logits of one row."""
    source, target = (line["de"], line["en"]) if "de" in line else (None, line["answer"])
    source = "\n\n".join([line["question"], *line["passages"]]) if source is None else source
    source, target = (np.append(task.tokenizer.tokenize(text), 1) for text in (source * use_source, target))
    if task.has_encoder:
        logits = model({"encoder_token_ids": source[None], "decoder_token_ids": np.append(0, target[:-1])[None]})[0]
    else:
        logits = model(np.concatenate([[0], source, target[:-1]])[None])[0, len(source) :]
    log_probs = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))
    return -log_probs[np.arange(len(target)), target].sum()


def test_every_translation_is_scored_once_with_and_without_the_source(run, scores):
    task, model, lines = registry.load_task(run), task_runs.load_model(run), LINES["translate"][20:]
    for found, use_source in ((scores, True), (scores["without_source"], False)):
        assert found["nats"] == pytest.approx(sum(nats_of(task, model, line, use_source) for line in lines), rel=1e-4)
    assert scores["bytes"] == sum(len(line["en"]) for line in lines) == scores["tokens"] - len(lines)
    assert (scores["pairs"], scores["left_out"]) == (4, 0)
    assert json.loads((run / "evaluation-test.json").read_text()) == scores
    assert not list(run.glob("*.partial.*"))
    validation = task.validation(task, model, "train")
    counts = {"left_out": int(validation.buckets.is_too_long.sum()), "empty_targets": 2, "empty_sources": 0}
    text = evaluation.as_text({**scores, **counts})
    assert "without the source" in text and "4, 1 too long, 2 empty targets\n" in text


@pytest.mark.full
@pytest.mark.parametrize("variant", ["small", "encoder"])
def test_only_answers_are_scored_with_and_without_their_question(task_run, variant):
    run, wanted = task_run("answer", variant), base.overridable_settings()
    task, model, lines = registry.load_task(run), task_runs.load_model(run), LINES["answer"][13:]
    wanted.train.generated_targets = -1
    scores = evaluation.evaluate(run, "test", wanted)
    for found, use_source in ((scores, True), (scores["without_source"], False)):
        assert found["nats"] == pytest.approx(sum(nats_of(task, model, line, use_source) for line in lines), rel=1e-4)
    assert scores["tokens"] == sum(len(line["answer"]) + 1 for line in lines)
    generated = [json.loads(line) for line in (run / "generated-test.jsonl").read_text().splitlines()]
    assert sorted(line["target"] for line in generated) == sorted(line["answer"] for line in lines)
    assert all(len(line["generated"].encode()) <= 3 * 5 for line in generated)
    assert "ROUGE-L" in evaluation.as_text(scores) and scores["generated"] == 3


@pytest.mark.full
def test_scores_of_another_file_are_next_to_those_of_the_run(run, scores, tmp_path):
    wanted = base.overridable_settings()
    wanted.data.path = str(task_runs.write_lines(tmp_path / "other.jsonl", LINES["translate"][-2:]))
    wanted.train.generated_targets, wanted.generate.length = 1, 3
    files = [run / name for name in ("evaluation-test.json", "generated-test.jsonl")]
    before = [file.read_bytes() for file in files]
    found = evaluation.evaluate(run, "test", wanted)
    assert found["pairs"] == 2 and [file.read_bytes() for file in files] == before
    assert Path(found["path"]).name.startswith("evaluation-json_lines-other_")
    assert Path(found["generated_path"]).name.startswith("generated-json_lines-other_")


def test_translations_are_written_and_scored_and_compared_with_copied_sources(run, scores):
    lines = [json.loads(line) for line in (run / "generated-test.jsonl").read_text().splitlines()]
    assert [line["pair"] for line in lines] == [0, 3] and all(len(line["generated"]) <= 3 for line in lines)
    assert (scores["generated"], scores["generated_path"][-10:]) == (2, "test.jsonl")
    assert scores == {**scores, **registry.load_task(run).score_targets(lines)}
    assert "case:mixed" in scores["chrf_signature"]
    assert f"--- generated\n{lines[0]['generated']}" in evaluation.as_text(scores)


class Copier:
    """Replacement for a model that copies the source, and is killed at a given batch."""

    def __init__(self, dies_at=None):
        self.dies_at, self.calls = dies_at, []

    @property
    def generator(self):
        return self

    def generation_request(self, sources, length, *settings):
        return {"sources": sources.rows, "length": length}

    def iterate(self, sources, length, chunk_size):
        if len(self.calls) == self.dies_at:
            raise KeyboardInterrupt
        self.calls.append(len(sources))
        yield [Row(source[:-1][:length], None, True) for source in sources]


def test_translations_resume_after_the_last_complete_batch(run, tmp_path):
    task = registry.load_task(run)
    buckets, numbers = task.open_buckets("train"), np.array([0, 1, 2, 4, 5, 6, 7, 8, 9, 10])
    partial, path = evaluation.ResumableSums(tmp_path / "x.partial.json", ["model"]), tmp_path / "x.partial.json"
    with pytest.raises(KeyboardInterrupt):
        pairs.generate_targets(task, Copier(1), buckets, numbers, partial)
    rest, anew, other = Copier(), Copier(), Copier()
    lines = pairs.generate_targets(task, rest, buckets, numbers, partial)
    assert rest.calls == [2] and [line["pair"] for line in lines] == numbers.tolist()
    assert all(line["generated"] == line["source"][:5] for line in lines)
    path.write_text(path.read_text()[:-20])  # incomplete
    assert pairs.generate_targets(task, anew, buckets, numbers, partial) == lines
    partial = evaluation.ResumableSums(path, ["another model"])
    assert pairs.generate_targets(task, other, buckets, numbers, partial) == lines
    assert anew.calls == other.calls == [8, 2]


def test_targets_that_are_all_empty_have_no_bits_per_byte(make_task_config, tmp_path):
    config = make_task_config("translate")
    config.data.path = str(task_runs.write_lines(tmp_path / "x.jsonl", [{"de": "eins", "en": "", "split": "train"}]))
    task = registry.make_task(config)
    with pytest.raises(ValueError, match=r"`config\.data\.target_field` must have text .* 1 pairs of .*empty"):
        task.validation(task, None, "train")


def test_generated_targets_have_the_scores_of_sacrebleu_and_rouge(run, make_task_config):
    line = {"source": "the cat is on the mat today", "target": "le chat est sur le tapis aujourd'hui"}
    scores = registry.load_task(run).score_targets([{**line, "generated": line["target"]}] * 2)
    assert scores["bleu"] == pytest.approx(100) and scores["chrf"] == pytest.approx(100)
    assert scores["of_sources"]["bleu"] < 5 and 5 < scores["of_sources"]["chrf"] < 40
    line = {"source": "one two three four", "target": "two four six", "generated": "two and four"}
    scores = registry.make_task(make_task_config("answer")).score_targets([line])
    assert scores["rouge_l"] == pytest.approx(100 * 2 / 3)
    assert scores["of_sources"]["rouge_l"] == pytest.approx(100 * 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert evaluation.number(None) == "too large for a float"


@pytest.mark.full
@pytest.mark.parametrize("name", ["translate", "answer"])
def test_a_prompt_is_the_source_and_the_sample_its_target(task_run, name):
    task, model = registry.load_task(task_run(name)), task_runs.load_model(task_run(name))
    sources = task.make_sample_source(model)
    (sample,) = task_runs.draw_samples(sources, b"eins zwei", length=5, temperature=0.0)
    assert sample["text"] == sources.generate([task.tokenizer.tokenize("eins zwei")], 5, "greedy")[0]
    assert sample["prompt"] == "eins zwei" and sample["num_tokens"] <= 5


@pytest.mark.full
def test_a_preset_has_sizes_and_heads_that_settings_replace(make_task_config):
    config = translate_documents.get_config(translate_documents.PRESET)
    config.data = make_task_config("translate").data
    config.model.update(num_layers=2, num_local_layers=1, hidden_dim=16, intermediate_dim=16, share_embeddings=False)
    model = registry.make_task(config).make_model()
    assert len(model.encoder.blocks) == len(model.backbone.blocks) == 2 and model.encoder.vocabulary_size == 258
    routed = [part.selection for part in model.backbone.blocks[1].attention.parts if hasattr(part, "selection")]
    assert routed == ["nearest"]
    config.model.preset = "pg19_local8k"
    with pytest.raises(ValueError, match=r"`name` must be one of \['translate_local_cluster4k'\]"):
        registry.make_task(config).make_model()
    config.model.num_encoder_layers = 2
    with pytest.raises(ValueError, match=r"`config\.model\.num_encoder_layers` must be unset for task=translate"):
        registry.make_task(config)


def test_an_answering_encoder_decoder_has_no_preset_and_a_translator_no_audit(run, make_task_config):
    config = make_task_config("answer", "encoder")
    config.model.preset = "x"
    with pytest.raises(ValueError, match=r"`config\.model\.preset`"):
        registry.make_task(config)
    with pytest.raises(ValueError, match=r"`MODEL`.*a SequenceToS"):
        audit.load_target(str(run))
