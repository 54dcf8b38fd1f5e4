"""SavedModels of encoders with a head and of encoder-decoders: labels, answers and targets equal the model's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.export.portable_cases import make_encoder, randomized
from tests.export.serving import LOCAL, call
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.export import export_classifier, export_sequence_to_sequence, export_span_answerer
from tf_sparse_attention.models import (
    Backbone,
    LanguageModel,
    SequenceClassifier,
    SequenceToSequence,
    SpanAnswerer,
    TokenClassifier,
)
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.models.programs import Programs

TEXTS = ["a short text", "", "Ä", b"\xff one that is longer than fits"]
LABELS = ["ham", "späm", "x"]
LENGTH = 16


def make(kind, *arguments, **options):
    return randomized(kind(make_encoder(258), *arguments, **options))


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
    return model, tf.saved_model.load(path).signatures


def row_of(text):
    return [0, *ByteTokenizer().tokenize(text), 1][:LENGTH]


def probabilities_of(model, text):
    return keras.ops.convert_to_numpy(keras.ops.softmax(model(np.array([row_of(text)]))))[0]


def test_a_text_has_the_label_that_the_model_gives_it(classifier):
    model, path = classifier
    found = call(tf.saved_model.load(path).signatures, "classify", text=TEXTS)
    expected = np.array([probabilities_of(model, text) for text in TEXTS])
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    assert [label.decode() for label in found["label"]] == [LABELS[number] for number in expected.argmax(-1)]
    assert found["num_tokens"].tolist() == [12, 0, 2, 15]
    assert found["is_cut"].tolist() == [False, False, False, True]
    assert '`["ham", "späm", "x"]`' in (path / "README.md").read_text(encoding="utf-8")


@pytest.mark.full
def test_every_token_has_its_label(folder):
    model = make(TokenClassifier, 3)
    path = export_classifier(model, folder / "tokens", ByteTokenizer(), LABELS, LENGTH)
    found = call(tf.saved_model.load(path).signatures, "classify", text=TEXTS)
    for number, text in enumerate(TEXTS):
        content = (text if isinstance(text, bytes) else text.encode())[: LENGTH - 1]
        expected = probabilities_of(model, text)[1 : 1 + len(content)]
        np.testing.assert_allclose(found["probabilities"][number, : len(content)], expected, atol=1e-5)
        assert not found["probabilities"][number, len(content) :].any()
        padding = [b""] * (15 - len(content))
        assert found["tokens"][number].tolist() == [bytes([byte]) for byte in content] + padding
        labels = [LABELS[kind].encode() for kind in expected.argmax(-1)]
        assert found["label"][number].tolist() == labels + padding


@pytest.mark.full
def test_an_answer_is_the_span_that_the_model_finds(answerer):
    model, served = answerer
    questions, texts = ["who?", "when?", "", "so?"], ["the old man", "", "Ä b", "this one is cut at the end"]
    found = call(served, "answer", question=questions, text=texts)
    for number, (question, text) in enumerate(zip(questions, texts, strict=True)):
        asked, ids = (ByteTokenizer().tokenize(x) for x in (question, text))
        first, row = len(asked) + 2, [0, *asked, 1, *ids, 1][:24]
        kept = min(len(ids), 24 - first)
        mask = [first <= place < first + kept for place in range(len(row))]
        expected = model.answer({"token_ids": np.array([row]), "answer_mask": np.array([mask])})
        start, end = (int(expected[name][0]) for name in ("start", "end"))
        assert found["answer"][number] == text.encode()[start - first : end - first + 1] * (start >= 0)
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
            call(answerer[1], "answer", question=question, text=text)


SOURCES = ["guten Tag", "", "Ä", "ein langer Satz " * 5]
ACROSS = {"layer": "DenseAttention", "num_heads": 1, "key_dim": 8}


@pytest.fixture(scope="module")
def translator():
    keras.utils.set_random_seed(4)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32}
    decoder = Backbone(258, attention=[LOCAL], cross_attention=[ACROSS], embedding={"grid": (4, 8)}, **sizes)
    decoder = LanguageModel(decoder)
    translator = SequenceToSequence(Backbone(None, attention=[LOCAL], causal=False, **sizes), decoder)
    translator._programs, decoder._generator = Programs(translator, True), Generator(decoder, run_eagerly=True)
    return translator


@pytest.fixture(scope="module")
def translation(translator, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "translation"
    export_sequence_to_sequence(translator, path, ByteTokenizer(), jit_compile=False)
    return tf.saved_model.load(path).signatures


def write(translation, texts, **settings):
    settings = {"max_length": 7, "temperature": 0.0, "top_p": 1.0, "seed": 3, **settings}
    return call(translation, "generate", text=texts, **settings)


def sources_of(texts):
    return [np.append(ByteTokenizer().tokenize(text), ByteTokenizer().end_id) for text in texts]


@pytest.mark.full
def test_texts_are_those_that_the_model_writes(translator, translation):
    for strategy in ("greedy", "random"):  # random texts follow the seed
        options = {"tokenizer": ByteTokenizer(), "seed": 3, "return_log_probs": True}
        rows = translator.generate(sources_of(SOURCES), 7, strategy, **options)
        found = write(translation, SOURCES, temperature=float(strategy == "random"))
        assert [text.decode() for text in found["text"]] == rows[0]
        np.testing.assert_allclose(found["log_prob"], [np.sum(row) for row in rows[1]], atol=1e-3)
        assert (found["num_tokens"] <= 7).all()


@pytest.mark.full
def test_scores_of_targets_are_those_of_the_model(translator, translation):
    targets = ["good day", "", "Ö", "a long sentence"]
    found = call(translation, "score", text=SOURCES, target=targets)
    for row, (source, target) in enumerate(zip(sources_of(SOURCES), sources_of(targets), strict=True)):
        inputs = {"encoder_token_ids": source[None], "decoder_token_ids": np.pad(target, (1, 0))[None, :-1]}
        logits = keras.ops.convert_to_numpy(keras.ops.log_softmax(translator(inputs)))[0]
        nats = -logits[np.arange(len(target)), target].sum()
        np.testing.assert_allclose(found["nats"][row], nats, rtol=1e-4)
        num_bytes = len(targets[row].encode())
        assert (found["num_tokens"][row], found["num_bytes"][row]) == (len(target), num_bytes)
        np.testing.assert_allclose(found["bits_per_byte"][row], nats / np.log(2) / num_bytes if num_bytes else 0, 1e-4)


@pytest.mark.full
def test_inputs_and_arguments_of_a_translator_that_do_not_fit_are_errors(translator, translation, tmp_path):
    for settings, name in (({"max_length": 0}, "max_length"), ({"temperature": -1.0}, "temperature")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}`"):
            write(translation, ["x"], **settings)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`text` and `target`"):
        call(translation, "score", text=["x", "y"], target=["z"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="`target` must have at most 32 tokens"):
        call(translation, "score", text=["x"], target=["y" * 32])
    with pytest.raises(ValueError, match="`model` must be a `SequenceToSequence`"):
        export_sequence_to_sequence(translator.decoder, tmp_path / "x", ByteTokenizer())
    with pytest.raises(ValueError, match="`source_tokenizer`"):
        export_sequence_to_sequence(translator, tmp_path / "x", ByteTokenizer(), "bytes")
