"""Long-form question answering with a language model or an encoder-decoder."""

import json

import keras
import numpy as np
import pytest

from tests.trainers.eager import EAGER
from tf_sparse_attention.trainers.configs import answer
from tf_sparse_attention.trainers.shared import evaluation, overrides, sampling, training, workdir
from tf_sparse_attention.trainers.tasks import registry

pytestmark = EAGER


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of generated questions. The answer repeats a word of a passage."""
    random, lines = np.random.default_rng(0), []
    for number in range(16):
        words = ["".join(chr(97 + c) for c in random.integers(0, 26, 4)) for _ in range(3)]
        split = "train" if number < 10 else "validation" if number < 13 else "test"
        lines.append({"question": f"which? {number}", "passages": words, "answer": f"{words[1]}.", "split": split})
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def make_config(path, data_dir):
    def make(variant="small"):
        config = answer.get_config(variant)
        config.data.update(path=str(path), data_dir=str(data_dir), tokenizer="bytes", sequence_length=64, batch_size=4)
        config.model.update(num_layers=1, hidden_dim=16, intermediate_dim=16, num_local_layers=0)
        parts = {"num_heads": 1, "key_dim": 8}
        config.model.attention = [{"layer": "LocalAttention", "window": 16, **parts}]
        if variant == "encoder":
            config.model.encoder_attention, config.model.cross_attention = [], [{"layer": "DenseAttention", **parts}]
        config.train.update(num_steps=2, log_every=1, evaluate_every=2, checkpoint_every=2)
        config.train.update(deterministic=False, jit_compile=False)
        config.generate.length = 5
        return config

    return make


@pytest.fixture(scope="module", params=["small", pytest.param("encoder", marks=pytest.mark.full)])
def finished(request, make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    training.train(make_config(request.param), folder)
    return folder


def nats_of(task, model, line, use_source):
    """Return the nats of an answer, from the logits of one row."""
    source = "\n\n".join([line["question"], *line["passages"]]) if use_source else ""
    source, target = (np.append(task.tokenizer.tokenize(text), 1) for text in (source, line["answer"]))
    if task.has_encoder:
        logits = model({"encoder_token_ids": source[None], "decoder_token_ids": np.append(0, target[:-1])[None]})[0]
    else:
        logits = model(np.concatenate([[0], source, target[:-1]])[None])[0, len(source) :]
    log_probs = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))
    return -log_probs[np.arange(len(target)), target].sum()


def test_only_answers_are_scored_with_and_without_their_question(finished, path):
    task, model = registry.load_task(finished), workdir.load_model(finished)
    wanted = overrides.overridable_settings()
    wanted.train.generated_targets = -1
    scores = evaluation.evaluate(finished, "test", wanted)
    lines = [json.loads(line) for line in path.read_text().splitlines()][13:]
    for found, use_source in ((scores, True), (scores["without_source"], False)):
        assert found["nats"] == pytest.approx(sum(nats_of(task, model, line, use_source) for line in lines), rel=1e-4)
    assert scores["tokens"] == sum(len(line["answer"]) + 1 for line in lines)
    generated = [json.loads(line) for line in (finished / "generated-test.jsonl").read_text().splitlines()]
    assert sorted(line["target"] for line in generated) == sorted(line["answer"] for line in lines)
    assert all(len(line["generated"].encode()) <= 3 * 5 for line in generated)
    assert "ROUGE-L" in evaluation.as_text(scores) and scores["generated"] == 3


@pytest.mark.full
def test_a_prompt_is_the_question_and_the_sample_the_answer(finished):
    task = registry.load_task(finished)
    (sample,) = sampling.generate(
        task.make_sample_source(workdir.load_model(finished)), b"which?", length=4, temperature=0.0
    )
    source = np.append(task.tokenizer.tokenize("which?"), 1).astype("int32")
    task.config.generate.length = 4
    assert sample["text"] == task.write_targets(workdir.load_model(finished), [source], "greedy")[0]
    assert sample["prompt"] == "which?" and sample["num_tokens"] <= 4


def test_rouge_is_that_of_words_in_their_order(make_config):
    task = registry.make_task(make_config())
    line = {"source": "one two three four", "target": "two four six", "generated": "two and four"}
    scores = task.score_targets([line])
    assert scores["rouge_l"] == pytest.approx(100 * 2 / 3)
    assert scores["of_sources"]["rouge_l"] == pytest.approx(100 * 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))


def test_answers_need_a_target_field_and_cannot_have_the_preset_of_a_language_model(make_config):
    for variant, section, name, value in [
        ("small", "data", "target_field", None),
        ("encoder", "model", "preset", "x"),
    ]:
        config = make_config(variant)
        config[section][name] = value
        with pytest.raises(ValueError, match=rf"`config\.{section}\.{name}`"):
            registry.make_task(config)
