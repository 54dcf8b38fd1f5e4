"""Models of other tokenizers than bytes are trained, evaluated, sampled from and exported by the same programs."""

import json
import subprocess
import sys

import pytest
import tensorflow as tf

import tf_sparse_attention as tsa
from tests import remote_paths  # noqa: F401  # registers the scheme disk://
from tests.conftest import ROOT
from tf_sparse_attention import remote_files
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.trainers.configs import answer, base, classify, translate_documents
from tf_sparse_attention.trainers.shared import (
    components,
    evaluation,
    exporting,
    sampling,
    tokenizers,
    training,
    workdir,
)
from tf_sparse_attention.trainers.tasks import language_model, registry

PIECES = ["[UNK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]


@pytest.fixture(scope="module")
def vocabulary(text_folder, data_dir, tmp_path_factory):
    """A file of subwords, found by the program in the text of the tests."""
    path = tmp_path_factory.mktemp("vocabulary") / "text.subwords"
    flags = [f"--config.data.path={text_folder}", f"--config.data.data_dir={data_dir}", "--size=60", f"--output={path}"]
    command = [sys.executable, "-m", "tf_sparse_attention.trainers.vocabulary", *flags]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert f"written to {path}" in result.stderr
    return path


@pytest.fixture(scope="module")
def run(make_plain_config, vocabulary, tmp_path_factory):
    """A run directory of a model of subwords."""
    config = make_plain_config()
    config.data.update(tokenizer="subword", vocabulary=str(vocabulary))
    folder = tmp_path_factory.mktemp("runs") / "subwords"
    training.train(config, folder)
    return config, folder


@pytest.mark.full
def test_a_vocabulary_may_be_at_an_address(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path))
    found = tokenizers.make_tokenizer("subword", f"disk://{vocabulary}")
    assert found.get_config() == tokenizers.make_tokenizer("subword", vocabulary).get_config()


@pytest.mark.full
def test_a_model_of_subwords_is_trained_and_evaluated_per_byte(run):
    _, folder = run
    result = evaluation.evaluate(folder)
    tokenizer = workdir.load_tokenizer(folder)
    assert isinstance(tokenizer, tsa.data.SubwordTokenizer)
    assert result["tokens"] < result["bytes"]
    assert 0 < result["bits_per_byte"] < 8
    assert workdir.load_model(folder).backbone.vocabulary_size == tokenizer.vocabulary_size


def run_in_this_process(path, signature, inputs):
    """Replace `exporting.run_without_library`, without another process. test_export_app.py tests that one."""
    values = {name: tf.constant(value) for name, value in inputs.items()}
    result = tf.saved_model.load(path).signatures[signature](**values)
    return {name: float(value[0]) for name, value in result.items()}


def write_lines(task, path):
    """Write JSON lines of a task of text and return the settings of `config.data` for them."""
    fields = {"translate": ("de", "en"), "answer": ("question", "passages", "answer"), "classify": ("text", "label")}
    rows = [{name: f"{name} {number} of many {task}s" for name in fields[task]} for number in range(10)]
    path.write_text("\n".join(json.dumps({**row, "split": "train"}) for row in rows), encoding="utf-8")
    settings = {"path": str(path), "data_dir": str(path.parent), "tokenizer": "subword", "vocabulary": "missing"}
    pairs = {"translate": ("de", "en"), "answer": ("question+passages", "answer")}.get(task, (None, None))
    return settings | dict(zip(("source_field", "target_field"), pairs, strict=True))


def test_a_task_of_text_has_a_vocabulary_of_its_texts(tmp_path):
    for task, config, words in [
        ("translate", translate_documents, {"de", "en", "translates"}),
        ("answer", answer, {"question", "passages", "answers"}),
        ("classify", classify, {"text", "classifys"}),
    ]:
        config = config.get_config()
        config.data.update(write_lines(task, tmp_path / f"{task}.jsonl"))
        documents = registry.text_source(config).documents(config.data.train_split)
        tsa.data.train_subwords(documents, 200).to_file(tmp_path / "lines.subwords")
        config.data.vocabulary = str(tmp_path / "lines.subwords")
        tokenizer = registry.make_task(config).tokenizer
        assert all(len(tokenizer.tokenize(word)) == 1 for word in words)


def test_a_task_without_text_and_settings_that_do_not_fit_it_are_errors_that_name_them():
    for task, field, name in [
        ("language_model", "en", r"data\.source_field"),
        ("translate", "en", r"data\.target_field"),
        ("image", None, "task"),
    ]:
        config = base.get_config()
        config.task, config.data.source_field = task, field
        with pytest.raises(ValueError, match=rf"`config\.{name}`"):
            registry.text_source(config)


@pytest.mark.full
def test_it_is_sampled_from_and_exported(run, monkeypatch):
    _, folder = run
    source = registry.load_task(folder).make_sample_source(workdir.load_model(folder))
    source.model._generator = Generator(source.model, run_eagerly=True)  # compiling takes longer than five tokens
    (sample,) = sampling.generate(source, b"ab", length=5)
    assert sample["text"].startswith("ab")
    monkeypatch.setattr(exporting, "run_without_library", run_in_this_process)
    result = exporting.export(folder, jit_compile=False)
    served = tf.saved_model.load(result["path"])
    ids = workdir.load_tokenizer(folder).tokenize(language_model.LINE)
    assert result["num_bytes"] == len(language_model.LINE)
    assert result["nats"] > 0.1 * len(ids)
    drawn = served.signatures["generate"](
        prompt=tf.constant(["ab"]),
        max_length=tf.constant(9),
        temperature=tf.constant(1.0),
        top_p=tf.constant(1.0),
        seed=tf.constant(0),
    )
    assert drawn["text"].numpy()[0].startswith(b"ab")


def test_a_run_is_resumed_only_with_the_same_subwords_in_any_file(vocabulary, tmp_path):
    found = tokenizers.make_tokenizer("subword", vocabulary)
    workdir.save_state(tmp_path, {"tokenizer": tokenizers.describe(found)})
    # The path of the file does not matter.
    found.to_file(tmp_path / "copy")
    copied = tokenizers.make_tokenizer("subword", tmp_path / "copy")
    workdir.check_state(tmp_path, {"tokenizer": tokenizers.describe(copied)})
    longest = max(found.vocabulary, key=len)
    other = tsa.data.SubwordTokenizer([subword if subword != longest else "zz" for subword in found.vocabulary])
    with pytest.raises(ValueError, match=r"`config\.data` must match the tokenizer of the checkpoint"):
        workdir.check_state(tmp_path, {"tokenizer": tokenizers.describe(other)})


@pytest.mark.full
def test_word_pieces_are_exported_with_a_word_about_tensorflow_text(make_plain_config, tmp_path):
    pytest.importorskip("tensorflow_text", reason="needs tensorflow-text, which there is not for every system")
    (tmp_path / "pieces.txt").write_text("\n".join(PIECES), encoding="utf-8")
    config = make_plain_config()
    config.data.update(tokenizer="wordpiece", vocabulary=str(tmp_path / "pieces.txt"))
    made = tokenizers.make_tokenizer(config.data.tokenizer, config.data.vocabulary)
    workdir.save_state(
        tmp_path, {"tokenizer": tokenizers.describe(made)}
    )  # a run of a few steps would take longer than the export
    model, tokenizer = components.make_model(config, made.vocabulary_size), workdir.load_tokenizer(tmp_path)
    path = tsa.export.export_language_model(model, tmp_path / "served", tokenizer, jit_compile=False)
    assert "install TensorFlow and tensorflow-text" in (path / "README.md").read_text(encoding="utf-8")
    scored = tf.saved_model.load(path).signatures["score"](text=tf.constant(["ab cd", ""]))
    assert scored["nats"].numpy()[0] > 0
    assert scored["nats"].numpy()[1] == 0


def test_invalid_settings_of_a_tokenizer_are_errors_that_name_them():
    for kind, vocabulary, name in [
        ("letters", None, "config.data.tokenizer"),
        ("subword", None, "config.data.vocabulary"),
        ("bytes", "file", "config.data.vocabulary"),
        ("subword", "missing", "path"),
    ]:
        with pytest.raises(ValueError, match=f"`{name}`"):
            tokenizers.make_tokenizer(kind, vocabulary)
    assert tuple(tokenizers.KINDS) == base.TOKENIZERS
