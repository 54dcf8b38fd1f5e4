"""SavedModels of encoder-decoders: generated targets and scores equal the model's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.export.serving import LOCAL
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.export import export_sequence_to_sequence
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.models.programs import Programs

TEXTS = ["guten Tag", "", "Ä", "ein langer Satz " * 5]
ACROSS = {"layer": "DenseAttention", "num_heads": 1, "key_dim": 8}


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(4)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32}
    decoder = LanguageModel(Backbone(258, attention=[LOCAL], cross_attention=[ACROSS], **sizes))
    model = SequenceToSequence(Backbone(None, attention=[LOCAL], causal=False, **sizes), decoder)
    model._programs, decoder._generator = Programs(model, True), Generator(decoder, run_eagerly=True)
    return model


@pytest.fixture(scope="module")
def served(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "translator"
    export_sequence_to_sequence(model, path, ByteTokenizer(), jit_compile=False)
    return tf.saved_model.load(path).signatures


def write(served, texts, max_length=7, **settings):
    given = {"max_length": max_length, "temperature": 0.0, "top_p": 1.0, "seed": 3, **settings}
    inputs = {name: tf.constant(value) for name, value in given.items()}
    return {name: value.numpy() for name, value in served["generate"](text=tf.constant(texts), **inputs).items()}


def sources_of(texts):
    return [np.append(ByteTokenizer().tokenize(text), ByteTokenizer().end_id) for text in texts]


def test_texts_are_those_that_the_model_writes(model, served):
    for strategy in ("greedy", "random"):  # random texts follow the seed
        rows = model.generate(sources_of(TEXTS), 7, strategy, tokenizer=ByteTokenizer(), seed=3, return_log_probs=True)
        found = write(served, TEXTS, temperature=float(strategy == "random"))
        assert [text.decode() for text in found["text"]] == rows[0]
        np.testing.assert_allclose(found["log_prob"], [np.sum(row) for row in rows[1]], atol=1e-3)
        assert (found["num_tokens"] <= 7).all()


def test_scores_are_those_of_the_model(model, served):
    targets = ["good day", "", "Ö", "a long sentence"]
    found = served["score"](text=tf.constant(TEXTS), target=tf.constant(targets))
    for row, (source, target) in enumerate(zip(sources_of(TEXTS), sources_of(targets), strict=True)):
        inputs = {"encoder_token_ids": source[None], "decoder_token_ids": np.pad(target, (1, 0))[None, :-1]}
        logits = keras.ops.convert_to_numpy(keras.ops.log_softmax(model(inputs)))[0]
        nats = -logits[np.arange(len(target)), target].sum()
        np.testing.assert_allclose(found["nats"][row], nats, rtol=1e-4)
        num_bytes = len(targets[row].encode())
        assert (found["num_tokens"][row], found["num_bytes"][row]) == (len(target), num_bytes)
        np.testing.assert_allclose(found["bits_per_byte"][row], nats / np.log(2) / num_bytes if num_bytes else 0, 1e-4)


def test_inputs_and_arguments_that_do_not_fit_are_errors_that_name_them(model, served, tmp_path):
    for settings, name in (({"max_length": 0}, "max_length"), ({"temperature": -1.0}, "temperature")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}`"):
            write(served, ["x"], **settings)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`text` and `target`"):
        served["score"](text=tf.constant(["x", "y"]), target=tf.constant(["z"]))
    with pytest.raises(ValueError, match="`model` must be a `SequenceToSequence`"):
        export_sequence_to_sequence(model.decoder, tmp_path / "x", ByteTokenizer())
    with pytest.raises(ValueError, match="`source_tokenizer`"):
        export_sequence_to_sequence(model, tmp_path / "x", ByteTokenizer(), "bytes")
