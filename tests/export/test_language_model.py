"""SavedModels of language models, without the library, and how SavedModels are written."""

import math
import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_attention as tsa
from tests import remote_paths  # noqa: F401  # registers the scheme disk://
from tests.export.serving import LOCAL, ROUTING, TEXTS, WINDOW, call, export, generate, make_model, nats_of_texts
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.export import Input, Signature, input_checks, write_saved_model
from tf_sparse_attention.export.saved_model import quantize
from tf_sparse_attention.models import Backbone, LanguageModel


def test_scores_are_the_models_own_nats_over_all_windows(model, served):
    result, nats = call(served, "score", text=TEXTS), np.array(nats_of_texts(model))
    num_bytes = np.array([len(TEXTS[0]), 0, len(TEXTS[2]), len(TEXTS[3].encode())])
    np.testing.assert_allclose(result["nats"], nats, rtol=1e-5)
    np.testing.assert_array_equal(result["num_bytes"], num_bytes)
    np.testing.assert_array_equal(result["num_tokens"], num_bytes)
    np.testing.assert_allclose(result["bits_per_byte"], nats / math.log(2) / np.maximum(num_bytes, 1), rtol=1e-5)
    for texts in ([], [""], ["", ""]):
        empty = call(served, "score", text=texts)
        for name in ("nats", "bits_per_byte", "num_bytes"):
            np.testing.assert_array_equal(empty[name], np.zeros(len(texts)))


def embedding_of(model, text):
    ids = ByteTokenizer().tokenize(text)
    windows = [ids[begin : begin + WINDOW] for begin in range(0, len(ids), WINDOW)]
    vectors = [keras.ops.convert_to_numpy(model.backbone(np.array([[0, *window]])))[0, 1:] for window in windows]
    return np.concatenate(vectors).mean(0) if len(ids) else np.zeros(model.backbone.hidden_dim)


@pytest.mark.full
def test_an_embedding_is_the_mean_of_the_vectors_of_all_windows(model, served):
    result = call(served, "embed", text=TEXTS)
    for text, embedding, num_tokens in zip(TEXTS, result["embedding"], result["num_tokens"], strict=True):
        np.testing.assert_allclose(embedding, embedding_of(model, text), atol=1e-5)
        assert num_tokens == len(ByteTokenizer().tokenize(text))


@pytest.mark.full
def test_weights_in_8_bits_are_a_quarter_of_the_size_and_score_about_the_same(exported, tmp_path):
    keras.utils.set_random_seed(3)
    model = LanguageModel(Backbone(258, 1, 64, [ROUTING], intermediate_dim=128, seed=3))
    folder = export(model, tmp_path / "model", weight_dtype="int8", jit_compile=False)
    size = sum(path.stat().st_size for path in (folder / "variables").iterdir())
    assert size < 0.4 * 4 * model.count_params()
    served = tf.saved_model.load(folder).signatures
    np.testing.assert_allclose(call(served, "score", text=TEXTS)["nats"], nats_of_texts(model), rtol=5e-3)
    wanted = np.array([embedding_of(model, text) for text in TEXTS])
    # A vector that lies between two clusters may go to the other one, so some numbers differ more than others.
    assert np.abs(call(served, "embed", text=TEXTS)["embedding"] - wanted).mean() < 0.05
    first, again = (generate(served, ["ab", ""], max_length=9) for _ in range(2))
    assert first == again
    texts = first["text_bytes"]
    assert texts[0].startswith(b"ab") and len(texts[0]) > 2 and texts[1]
    assert "large weights in 8 bits" in (folder / "README.md").read_text()
    assert "8 bits" not in (exported / "README.md").read_text()


def test_8_bits_are_as_close_as_they_can_be():
    weight = np.random.default_rng(0).normal(size=(64, 5, 32)) * np.logspace(-3, 0, 32)
    numbers, scale = quantize(weight)
    assert numbers.dtype == np.int8
    assert scale.shape == (1, 5, 32)  # by columns, which differ in size
    assert (np.abs(numbers * scale - weight) <= 0.501 * scale).all()
    rows = np.random.default_rng(0).normal(size=(64, 32)) * np.logspace(-3, 0, 64)[:, None]
    assert quantize(rows)[1].shape == (64, 1)
    assert quantize(np.ones((2, 64, 32)))[1].size <= 128  # not one for each pair of numbers
    numbers, scale = quantize(np.zeros((64, 32)))
    assert not numbers.any() and (scale == 1).all()


@pytest.mark.pages
def test_the_example_of_the_readme_runs_without_the_library(exported, served, run_python):
    readme = (exported / "README.md").read_text(encoding="utf-8")
    example = readme.split("```python\n")[1].split("```")[0]
    alone = "import os, sys\nsys.modules['tf_sparse_attention'] = None  # as where it is not installed\n"
    printed = run_python(f"{alone}os.chdir({str(exported.parent)!r})\n{example}")
    assert printed.startswith("{") and printed.endswith("}\n")
    bits = call(served, "score", text=["def main():", "A line of text."])["bits_per_byte"]
    continued = generate(served, ["def main():", ""], 60, 0.8, 0.95, 1)["text_bytes"]
    assert repr(bits) in printed and all(repr(text) in printed for text in continued)
    for name, function in served.items():
        for each in [*function.structured_input_signature[1], *function.structured_outputs]:
            assert f"| `{each}` |" in readme, (name, each)


def test_an_earlier_export_is_replaced_as_a_whole(model, tmp_path):
    path = tmp_path / "model"
    (path / "variables").mkdir(parents=True)
    for name in ("saved_model.pb", "variables/old", "mine"):
        (path / name).touch()
    with pytest.raises(ValueError, match=r"an empty folder, or an earlier export\. Received: .*, which has mine\."):
        write_saved_model(path, model, {"double": scaled(2.0)}, "A model")
    (path / "mine").unlink()
    assert write_saved_model(path, model, {"double": scaled(2.0)}, "A model") == path
    assert {"README.md", "saved_model.pb", "variables"} <= set(os.listdir(path))
    assert not (path / "variables" / "old").exists()
    before = (path / "saved_model.pb").stat().st_mtime_ns

    def fail(x):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_saved_model(path, model, {"double": scaled(2.0, function=fail)}, "A model")
    assert os.listdir(tmp_path) == ["model"] and (path / "saved_model.pb").stat().st_mtime_ns == before


def scaled(factor, **changes):
    x = Input(tf.TensorSpec((None, 2), tf.float32, "x"), "values", "tf.ones((1, 2))")
    signature = Signature(lambda x: {"y": factor * x}, [x], {"y": "values times a factor"}, "scaled values")
    return signature._replace(**changes)


def test_functions_of_any_model_are_written_to_an_address(tmp_path):
    layer = tsa.layers.LocalAttention(1, 4, window=3)
    inputs = keras.Input((None, 4))
    encoder, path = keras.Model(inputs, layer(inputs)), f"disk://{tmp_path}/bucket/model"
    x = Input(tf.TensorSpec((None, None, 4), tf.float32, "x"), "vectors", "tf.zeros((1, 8, 4))")
    encode = Signature(lambda x: {"y": encoder(x)}, [x], {"y": "vectors after attention"}, "attention", "Notes.")
    for signatures in ({"encode": encode, "half": scaled(0.5)}, {"encode": encode}):  # the second replaces the first
        assert str(write_saved_model(path, encoder, signatures, "An encoder")) == path
        loaded = tf.saved_model.load(str(tmp_path / "bucket" / "model")).signatures
        assert set(loaded) == set(signatures)
    vectors = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    np.testing.assert_allclose(loaded["encode"](x=vectors)["y"], encoder(vectors), atol=1e-6)
    readme = (tmp_path / "bucket" / "model" / "README.md").read_text()
    for text in ("# An encoder\n", "`encode`: attention\n", "\nNotes.\n", "| `x` | float32 (B, T, 4) |", "x=tf.zeros("):
        assert text in readme
    (tmp_path / "bucket" / "model" / "saved_model.pb").unlink()
    with pytest.raises(ValueError, match=r"`path` must be a new folder, .* Received: path=disk://"):
        write_saved_model(path, encoder, {"encode": encode}, "An encoder")


def test_arguments_that_do_not_fit_are_errors_that_name_them(model, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    not_causal, small = make_model(causal=False), make_model(vocabulary_size=200)
    good = {"model": model, "path": tmp_path / "x", "tokenizer": ByteTokenizer()}
    for arguments, message in [
        ({"model": keras.Sequential()}, "`model` must be a `LanguageModel`"),
        ({"model": not_causal}, "`model` must be causal"),
        ({"model": small}, "`tokenizer` must not have .* 258 ids and a model with 200"),
        ({"tokenizer": "bytes"}, "`tokenizer` must be a .*Tokenizer"),
        ({"weight_dtype": "int4"}, "`weight_dtype`"),
        ({"sequence_length": 0}, "`sequence_length`"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"path": tmp_path / "other"}, "`path` must be a new folder"),
        ({"path": tmp_path / "other" / "thesis.txt"}, "`path` must be a new folder"),
    ]:
        with pytest.raises(ValueError, match=message):
            tsa.export.export_language_model(**{**good, **arguments})
    with pytest.raises(ValueError, match=r"`outputs` of the signature 'f' .*\['y'\]\. Received: \['z'\]"):
        write_saved_model(tmp_path / "x", model, {"f": scaled(2.0, outputs={"z": "other values"})}, "A model")
    jax = types.SimpleNamespace(backend=types.SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setattr(input_checks, "keras", jax)
    with pytest.raises(ValueError, match=r"KERAS_BACKEND=tensorflow\. Received: backend='jax'"):
        export(model, tmp_path / "x")


@pytest.mark.full
def test_a_model_trained_on_jax_is_exported_through_a_keras_file(run_jax, tmp_path):
    make_model().save(tmp_path / "untrained.keras")
    code = f"""
import keras, numpy as np
import tf_sparse_attention as tsa

model = keras.models.load_model({str(tmp_path / "untrained.keras")!r})
model.compile("sgd", tsa.models.language_model_loss())
ids = np.array([[0, *b"def main()"], [0, *b"0123456789"]])
print(*(model.train_on_batch(ids[:, :-1], ids[:, 1:]) for _ in range(2)))
model.save({str(tmp_path / "trained.keras")!r})
log_probabilities = keras.ops.log_softmax(model.predict_on_batch(ids[:, :-1]))
print(-np.take_along_axis(np.array(log_probabilities), ids[:, 1:, None], axis=2).sum((1, 2)))
"""
    losses, nats = run_jax(code).splitlines()
    assert float(losses.split()[0]) > float(losses.split()[1])
    trained = keras.models.load_model(tmp_path / "trained.keras", compile=False)
    served = tf.saved_model.load(export(trained, tmp_path / "saved_model")).signatures
    # The ids above are these, since the id of a byte is the byte + 2.
    texts = [bytes(byte - 2 for byte in text) for text in (b"def main()", b"0123456789")]
    np.testing.assert_allclose(call(served, "score", text=texts)["nats"], np.fromstring(nats[1:-1], sep=" "), rtol=1e-5)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*is not causal")
@pytest.mark.parametrize(
    ("settings", "routing", "rtol"),
    [
        ({"dtype": "mixed_bfloat16"}, {}, 2e-2),
        ({"remat": True, "dropout": 0.5}, {}, 1e-5),
        ({"embedding": {"dim": 24}, "norm": "post", "activation": "geglu"}, {"position": "relative"}, 1e-5),
        ({}, {"selection": "top_k"}, 1e-5),
    ],
)
def test_models_of_every_kind_are_exported_as_they_are(tmp_path, settings, routing, rtol):
    keras.utils.set_random_seed(3)
    sizes = {"num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
    backbone = Backbone(258, attention=[LOCAL, {**ROUTING, **routing}], seed=3, **sizes, **settings)
    model = LanguageModel(backbone, dtype=settings.get("dtype"))
    served = tf.saved_model.load(export(model, tmp_path / "saved_model")).signatures
    np.testing.assert_allclose(call(served, "score", text=TEXTS)["nats"], nats_of_texts(model), rtol=rtol)
    first, again = (generate(served, TEXTS, 140) for _ in range(2))
    assert first == again
    assert all(len(text) > len(prompt) for text, prompt in zip(first["text_bytes"], TEXTS, strict=True))
