"""SavedModels of encoders with a head: labels of texts and tokens, and answers, equal the model's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.export import export_classifier, export_span_answerer
from tf_sparse_attention.models import Backbone, SequenceClassifier, SpanAnswerer, TokenClassifier

TEXTS = ["a short text", "", "Ä", b"\xff one that is longer than fits"]
LABELS = ["ham", "späm", "x"]
LOCAL = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 6, "position": "rotary"}
LENGTH = 16


def make(kind, *arguments, **options):
    keras.utils.set_random_seed(6)
    encoder = Backbone(258, 1, 16, [LOCAL], intermediate_dim=16, causal=False)
    model = kind(encoder, *arguments, **options)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * keras.random.normal(weight.shape, seed=1))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def classifier(folder):
    model = make(SequenceClassifier, 3, pooling="mean")
    return model, export_classifier(model, folder / "texts", ByteTokenizer(), LABELS, LENGTH)


@pytest.fixture(scope="module")
def answerer(folder):
    model = make(SpanAnswerer, max_answer_length=3)
    path = export_span_answerer(model, folder / "answers", ByteTokenizer(), 24)
    return model, tf.saved_model.load(path).signatures["answer"]


def row_of(text):
    return [0, *ByteTokenizer().tokenize(text), 1][:LENGTH]


def probabilities_of(model, text):
    return keras.ops.convert_to_numpy(keras.ops.softmax(model(np.array([row_of(text)]))))[0]


def test_a_text_has_the_label_that_the_model_gives_it(classifier):
    model, path = classifier
    found = tf.saved_model.load(path).signatures["classify"](text=tf.constant(TEXTS))
    expected = np.array([probabilities_of(model, text) for text in TEXTS])
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    assert [label.decode() for label in found["label"].numpy()] == [LABELS[number] for number in expected.argmax(-1)]
    assert found["num_tokens"].numpy().tolist() == [12, 0, 2, 15]
    assert found["is_cut"].numpy().tolist() == [False, False, False, True]
    assert '`["ham", "späm", "x"]`' in (path / "README.md").read_text(encoding="utf-8")


def test_every_token_has_its_label(folder):
    model = make(TokenClassifier, 3)
    path = export_classifier(model, folder / "tokens", ByteTokenizer(), LABELS, LENGTH)
    found = tf.saved_model.load(path).signatures["classify"](text=tf.constant(TEXTS))
    for number, text in enumerate(TEXTS):
        content = (text if isinstance(text, bytes) else text.encode())[: LENGTH - 1]
        expected = probabilities_of(model, text)[1 : 1 + len(content)]
        np.testing.assert_allclose(found["probabilities"][number, : len(content)], expected, atol=1e-5)
        assert not found["probabilities"][number, len(content) :].numpy().any()
        padding = [b""] * (15 - len(content))
        assert found["tokens"][number].numpy().tolist() == [bytes([byte]) for byte in content] + padding
        labels = [LABELS[kind].encode() for kind in expected.argmax(-1)]
        assert found["label"][number].numpy().tolist() == labels + padding


def test_an_answer_is_the_span_that_the_model_finds(answerer):
    model, served = answerer
    questions, texts = ["who?", "when?", "", "so?"], ["the old man", "", "Ä b", "this one is cut at the end"]
    found = served(question=tf.constant(questions), text=tf.constant(texts))
    for number, (question, text) in enumerate(zip(questions, texts, strict=True)):
        asked, ids = (ByteTokenizer().tokenize(x) for x in (question, text))
        first, row = len(asked) + 2, [0, *asked, 1, *ids, 1][:24]
        kept = min(len(ids), 24 - first)
        mask = [first <= place < first + kept for place in range(len(row))]
        expected = model.answer({"token_ids": np.array([row]), "answer_mask": np.array([mask])})
        start, end = (int(expected[name][0]) for name in ("start", "end"))
        assert found["answer"][number].numpy() == text.encode()[start - first : end - first + 1] * (start >= 0)
        assert found["start"][number] == (start - first if start >= 0 else -1)
        np.testing.assert_allclose(found["log_prob"][number], expected["log_prob"][0], rtol=1e-4)
        assert (found["num_tokens"][number], found["is_cut"][number]) == (kept, len(texts[number]) > 20)


def test_inputs_and_arguments_that_do_not_fit_are_errors_that_name_them(classifier, answerer, tmp_path):
    model, tokenizer, path = classifier[0], ByteTokenizer(), tmp_path / "x"
    inputs = {name: keras.Input((None,), name=name) for name in ("ids", "types")}
    encoder = keras.Model(inputs, keras.ops.stack([inputs["ids"], inputs["types"]], axis=-1))
    for arguments, message in [
        ((answerer[0], path, tokenizer, LABELS), "`model` must be a `SequenceClassifier` or `TokenClassifier`"),
        ((model, path, tokenizer, LABELS[:2]), "`labels` must be 3 strings"),
        ((model, path, "bytes", LABELS), "`tokenizer`"),
        ((model, path, tokenizer, LABELS, 3), "`sequence_length`"),
        ((SequenceClassifier(encoder, 3), path, tokenizer, LABELS), r"an encoder whose inputs .*\['ids', 'types'\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_classifier(*arguments)
    for question, text, message in [
        (["a" * 21], ["b"], "`question` must have at most 20 tokens.*21"),
        (["a", "b"], ["c"], "`question` and `text`"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            answerer[1](question=tf.constant(question), text=tf.constant(text))
