"""Models of other tokenizers than bytes are trained, evaluated, sampled from and exported by the same programs."""

import pytest
import tensorflow as tf

import tf_sparse_attention as tsa
from tests import remote_paths  # noqa: F401  # registers the scheme disk://
from tests.trainers import task_runs
from tf_sparse_attention import remote_files
from tf_sparse_attention.trainers.configs import answer, base, classify, translate_documents
from tf_sparse_attention.trainers.shared import components, evaluation, training
from tf_sparse_attention.trainers.tasks import registry

PIECES = ["[UNK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]


@pytest.fixture(scope="module")
def subwords(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "text.subwords"
    tsa.data.train_subwords([b"the cat and the hat", b"that cat"], 60).to_file(path)
    return path


@pytest.mark.full
def test_the_program_finds_a_vocabulary_which_may_be_at_an_address(text_folder, data_dir, tmp_path, monkeypatch):
    path = tmp_path / "text.subwords"
    flags = [f"--config.data.path={text_folder}", f"--config.data.data_dir={data_dir}", "--size=60", f"--output={path}"]
    assert f"written to {path}" in task_runs.run_program("vocabulary", *flags)[1]
    monkeypatch.setenv(remote_files.CACHE, str(tmp_path / "cache"))
    found = components.make_tokenizer("subword", f"disk://{path}")
    assert found.get_config() == components.make_tokenizer("subword", path).get_config()


@pytest.mark.full
def test_a_model_of_subwords_is_trained_evaluated_per_byte_and_sampled_from(make_plain_config, subwords, tmp_path):
    config = make_plain_config()
    vocabulary = [*components.make_tokenizer("subword", subwords).vocabulary, *"bfgijklmnopqrsuvwxyz"]
    tsa.data.SubwordTokenizer(vocabulary).to_file(tmp_path / "all.subwords")
    config.data.update(tokenizer="subword", vocabulary=str(tmp_path / "all.subwords"))
    training.train(config, tmp_path / "run")
    result = evaluation.evaluate(tmp_path / "run")
    tokenizer = task_runs.load_tokenizer(tmp_path / "run")
    assert isinstance(tokenizer, tsa.data.SubwordTokenizer)
    assert result["bits_per_byte"] > 0 and result["tokens"] != result["bytes"] + 3
    model = task_runs.load_model(tmp_path / "run")
    assert model.backbone.vocabulary_size == tokenizer.vocabulary_size
    (sample,) = task_runs.draw_samples(registry.load_task(tmp_path / "run").make_sample_source(model), b"ab", length=5)
    assert sample["text"].startswith("ab")


@pytest.mark.parametrize(
    ("config", "sides"),
    [(translate_documents, ("de", "en")), (answer, ("question+passages", "answer")), (classify, ("text",))],
)
def test_a_task_of_text_has_a_vocabulary_of_its_texts(tmp_path, config, sides):
    config, vocabulary, numbers = config.get_config(), tmp_path / "lines.subwords", range(10)
    names = [name for side in sides for name in side.split("+")]
    rows = [{**{name: f"{name} {number}" for name in (*names, "label")}, "split": "train"} for number in numbers]
    config.data.update(path=str(task_runs.write_lines(tmp_path / "lines.jsonl", rows)), data_dir=str(tmp_path))
    if len(sides) == 2:
        config.data.update(source_field=sides[0], target_field=sides[1])
    config.data.update(tokenizer="subword", vocabulary=str(vocabulary))
    documents = list(registry.text_source(config).documents(config.data.train_split))
    texts = ["\n\n".join(f"{name} {number}" for name in side.split("+")) for side in sides for number in numbers]
    assert sorted(documents) == sorted(text.encode() for text in texts)
    tsa.data.train_subwords(documents, 200).to_file(vocabulary)
    tokenizer = registry.make_task(config).tokenizer
    assert all(len(tokenizer.tokenize(word)) == 1 for word in names)


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
def test_word_pieces_are_exported_with_a_word_about_tensorflow_text(make_plain_config, tmp_path):
    pytest.importorskip("tensorflow_text", reason="needs tensorflow-text, which there is not for every system")
    (tmp_path / "pieces.txt").write_text("\n".join(PIECES), encoding="utf-8")
    made = components.make_tokenizer("wordpiece", str(tmp_path / "pieces.txt"))
    model = components.make_model(make_plain_config(), made.vocabulary_size)
    tokenizer = components.from_description(components.describe(made))
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
            components.make_tokenizer(kind, vocabulary)
    assert tuple(components.KINDS) == base.TOKENIZERS
