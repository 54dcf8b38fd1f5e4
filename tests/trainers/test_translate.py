"""Task "translate": training, bit-exact resumption, scores, generated targets, and invalid settings."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.trainers.eager import EAGER
from tests.trainers.interrupted import check_resumed_run
from tf_sparse_attention import audit
from tf_sparse_attention.trainers.configs import translate_documents
from tf_sparse_attention.trainers.shared import (
    evaluation,
    exporting,
    overrides,
    sampling,
    training,
    workdir,
)
from tf_sparse_attention.trainers.tasks import generated_targets, registry

pytestmark = EAGER

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of generated pairs, one of which is too long."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(24):
        words = random.choice(list(WORDS), 60 if number == 3 else random.integers(3, 9))
        split = "train" if number < 16 else "validation" if number < 20 else "test"
        lines.append({"de": " ".join(words), "en": " ".join(WORDS[word] for word in words), "split": split})
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def make_config(path, data_dir):
    def make(variant="local"):
        config = translate_documents.get_config(variant)
        config.data.update(path=str(path), data_dir=str(data_dir), source_field="de", target_field="en")
        config.data.update(tokenizer="bytes", sequence_length=64, batch_size=4)
        config.model.update(num_layers=1, hidden_dim=16, intermediate_dim=16, num_local_layers=0)
        for name in ("attention", "encoder_attention", "cross_attention"):
            parts = [dict(part) for part in config.model[name]]
            config.model[name] = [{**part, "num_heads": 1, "key_dim": 8} for part in parts]
        config.train.update(num_steps=2, log_every=1, evaluate_every=2, checkpoint_every=2)
        config.train.update(deterministic=False, jit_compile=False)
        config.generate.length = 5
        return config

    return make


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, training.train(make_config(), folder)


@pytest.fixture(scope="module")
def scores(finished):
    """The scores of four pairs and two translations."""
    wanted = overrides.overridable_settings()
    wanted.train.generated_targets, wanted.generate.length = 2, 3
    return evaluation.evaluate(finished[0], "test", wanted)


@pytest.mark.full
def test_a_run_that_was_stopped_ends_as_one_that_was_not(make_config, tmp_path, monkeypatch):
    config = make_config("mixed")
    config.data.update(sequence_length=512, batch_size=1)  # batches of several lengths
    check_resumed_run(config, tmp_path, monkeypatch)


def test_subwords_are_those_of_both_texts(make_config, path):
    source = registry.text_source(make_config())
    lines = [json.loads(line) for line in path.read_text().splitlines()][:16]
    assert sorted(source.documents("train")) == sorted(line[side].encode() for line in lines for side in ("de", "en"))
    assert source.name.endswith("(de to en)")


def test_every_target_is_scored_once_with_and_without_the_source(finished, path, scores):
    rows = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if "validation/loss" in row]
    assert row["validation/without_source/loss"] > 0 and row["validation/bits_per_byte"] > 0
    targets = [json.loads(line)["en"] for line in path.read_text().splitlines()][20:]
    assert scores["bytes"] == sum(map(len, targets)) and scores["tokens"] == scores["bytes"] + len(targets)
    assert (scores["pairs"], scores["left_out"]) == (4, 0)
    written = json.loads((finished[0] / "evaluation-test.json").read_text())
    assert written == scores and not list(finished[0].glob("*.partial.json"))
    assert "without the source" in evaluation.as_text(scores)
    train = evaluation.evaluate(finished[0], "train")
    assert (train["pairs"], train["left_out"]) == (15, 1)
    assert (train["empty_sources"], train["empty_targets"]) == (0, 0)
    text = evaluation.as_text({**train, "empty_targets": 2})
    assert "15, 1 too long, 2 empty targets\n" in text


@pytest.mark.full
def test_scores_of_another_file_are_next_to_those_of_the_run(finished, scores, path, tmp_path):
    wanted = overrides.overridable_settings()
    wanted.data.path, wanted.train.generated_targets, wanted.generate.length = str(tmp_path / "other.jsonl"), 1, 3
    lines = [json.loads(line) for line in path.read_text().splitlines()][-2:]
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    files = [finished[0] / name for name in ("evaluation-test.json", "generated-test.jsonl")]
    before = [file.read_bytes() for file in files]
    found = evaluation.evaluate(finished[0], "test", wanted)
    assert found["pairs"] == 2 and [file.read_bytes() for file in files] == before
    assert Path(found["path"]).name.startswith("evaluation-json_lines-other_")
    assert Path(found["generated_path"]).name.startswith("generated-json_lines-other_")


def test_translations_are_written_and_scored_and_compared_with_copied_sources(finished, scores):
    task = registry.load_task(finished[0])
    lines = [json.loads(line) for line in (finished[0] / "generated-test.jsonl").read_text().splitlines()]
    assert [line["pair"] for line in lines] == [0, 3] and all(len(line["generated"]) <= 3 for line in lines)
    assert (scores["generated"], scores["generated_path"][-10:]) == (2, "test.jsonl")
    assert scores == {**scores, **task.score_targets(lines)} and "case:mixed" in scores["chrf_signature"]
    text = evaluation.as_text(scores)
    assert f"--- generated\n{lines[0]['generated']}" in text and "(2 generated targets)" in text


class Copier:
    """Replacement for a model that copies the source, and is killed at a given batch."""

    def __init__(self, dies_at=None):
        self.dies_at, self.calls = dies_at, []

    def generate(self, sources, length, strategy, tokenizer):
        if len(self.calls) == self.dies_at:
            raise KeyboardInterrupt
        self.calls.append(len(sources))
        return [tokenizer.detokenize(source[:-1])[:length] for source in sources]


def test_translations_resume_after_the_last_complete_batch(finished, tmp_path):
    task = registry.load_task(finished[0])
    buckets, pairs, path = task.open_buckets("train"), np.array([0, 1, 2, 4, 5, 6, 7, 8, 9, 10]), tmp_path / "x.jsonl"
    with pytest.raises(KeyboardInterrupt):
        generated_targets.GeneratedTargets(path, ["model"]).complete(task, Copier(1), buckets, pairs)
    with path.with_suffix(".partial.jsonl").open("a") as file:
        file.write('{"pair": 9, "sou')  # an incomplete line
    rest, anew = Copier(), Copier()
    lines = generated_targets.GeneratedTargets(path, ["model"]).complete(task, rest, buckets, pairs)
    assert rest.calls == [2] and [line["pair"] for line in lines] == pairs.tolist()
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines and not path.with_suffix(
        ".partial.jsonl"
    ).exists()
    assert all(line["generated"] == line["source"][:5] for line in lines)
    path.with_suffix(".partial.jsonl").write_text('["another model"]\n{"pair": 1}\n')
    assert generated_targets.GeneratedTargets(path, ["model"]).complete(task, anew, buckets, pairs) == lines
    assert anew.calls == [8, 2]


def test_targets_that_are_all_empty_have_no_bits_per_byte(finished, make_config, tmp_path):
    config = make_config()
    (tmp_path / "empty.jsonl").write_text('{"de": "eins", "en": "", "split": "train"}')
    config.data.path = str(tmp_path / "empty.jsonl")
    task = registry.make_task(config)
    with pytest.raises(ValueError, match=r"`config\.data\.target_field` must have text .* 1 pairs of .*empty"):
        task.validation(task, None, "train")


def test_scores_are_those_of_sacrebleu_on_whole_texts(finished):
    line = {"source": "the cat is on the mat today", "target": "le chat est sur le tapis aujourd'hui"}
    scores = registry.load_task(finished[0]).score_targets([{**line, "generated": line["target"]}] * 2)
    assert scores["bleu"] == pytest.approx(100) and scores["chrf"] == pytest.approx(100)
    assert scores["of_sources"]["bleu"] < 5 and 5 < scores["of_sources"]["chrf"] < 40


@pytest.mark.full
def test_the_exported_translator_writes_the_text_of_the_model_without_the_library(finished):
    task = registry.load_task(finished[0])
    result = exporting.export(finished[0], jit_compile=False)
    source = np.append(task.tokenizer.tokenize("This is a line of text."), 1)
    assert result["text"] == workdir.load_model(finished[0]).generate([source], 20, tokenizer=task.tokenizer)[0]
    assert result["test_result"].endswith(f", 'This is a line of text.' becomes {result['text']!r}")


@pytest.mark.full
def test_a_prompt_is_the_source_and_the_sample_its_translation(finished, tmp_path):
    task, model = registry.load_task(finished[0]), workdir.load_model(finished[0])
    (sample,) = sampling.generate(task.make_sample_source(model), b"eins zwei", length=5, temperature=0.0)
    model, tokenizer = workdir.load_model(finished[0]), workdir.load_tokenizer(finished[0])
    source = np.append(tokenizer.tokenize("eins zwei"), 1)
    assert sample["text"] == model.generate([source], 5, tokenizer=tokenizer)[0] and sample["prompt"] == "eins zwei"


@pytest.mark.full
def test_a_preset_has_sizes_and_heads_that_settings_replace(make_config):
    config = translate_documents.get_config(translate_documents.PRESET)
    config.data = make_config().data
    config.model.update(num_layers=2, num_local_layers=1, hidden_dim=16, intermediate_dim=16, share_embeddings=False)
    model = registry.make_task(config).make_model()
    assert len(model.encoder.blocks) == len(model.backbone.blocks) == 2 and model.encoder.vocabulary_size == 258
    routed = [part.selection for part in model.backbone.blocks[1].attention.parts if hasattr(part, "selection")]
    assert routed == ["nearest"]
    with pytest.raises(ValueError, match=r"`name` must be one of \['translate_local_cluster4k'\]"):
        config.model.preset = "pg19_local8k"
        registry.make_task(config).make_model()
    with pytest.raises(ValueError, match=r"`config\.model\.num_encoder_layers` must be unset for task=translate"):
        config.model.num_encoder_layers = 2
        registry.make_task(config)


def test_settings_that_do_not_fit_translation_are_errors_that_name_them(finished, make_config, tmp_path):
    for section, name, value, message in [
        ("data", "source_field", None, r"`config\.data\.source_field`"),
        ("model", "cross_attention", [], r"`config\.model\.cross_attention`"),
        ("data", "target_field", "fr", r"At least one line of pairs\.jsonl must have the fields de, fr"),
        (None, "task", "translation", r"`config\.task` must be one of language_model, masked, .*task=translation"),
    ]:
        config = make_config()
        (config[section] if section else config)[name] = value
        with pytest.raises(ValueError, match=message):
            training.train(config, tmp_path / name)
    with pytest.raises(ValueError, match=r"`MODEL`.*a SequenceToS"):
        audit.load_target(str(finished[0]))
    assert evaluation.number(None) == "too large for a float"
