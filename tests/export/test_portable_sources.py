"""LiteRT and ONNX files of encoder-decoders: a plain decoding loop gives the outputs of the model."""

import re

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.export.portable_cases import (
    HEADS,
    LOCAL,
    ROUTING,
    SIZES,
    export,
    needs,
    numbers,
    page_blocks,
    randomized,
    run_examples,
)
from tf_sparse_attention.export import export_litert
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence

TOLERANCE = 1e-4
SOURCES, WORDS = 31, 30
SOURCE_LENGTH, LENGTH = 13, SIZES["max_length"]
DENSE = {"layer": "DenseAttention", **HEADS}
ACROSS = {"layer": "LocalAttention", **HEADS, "block_size": 4, "key_block_size": 3}
# What is not of this library: tf2onnx.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx", "ignore::FutureWarning:tf2onnx")


def make(of_encoder=None, **of_decoder):
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 24, "seed": 0, "attention": [LOCAL]}
    decoder = LanguageModel(Backbone(WORDS, **{**sizes, "cross_attention": [DENSE], **of_decoder}))
    encoder = Backbone(**{"vocabulary_size": SOURCES, "causal": False, **sizes, **(of_encoder or {})})
    return randomized(SequenceToSequence(encoder, decoder))


@pytest.fixture(scope="module")
def model():
    return make(attention=[{**LOCAL, "position": "rotary"}], cross_attention=[ACROSS])


@pytest.fixture(scope="module", params=["LiteRT", pytest.param("ONNX", marks=pytest.mark.full)])
def run(request, model, tmp_path_factory):
    needs(request.param)
    return export(request.param, model, tmp_path_factory.mktemp("sources"), source_length=SOURCE_LENGTH)


@pytest.fixture(scope="module")
def rows():
    """Two sources, one that fills its row and one that does not, with random ids as padding; and their targets."""
    random = np.random.default_rng(0)
    # No id twice in a source: of equally good tokens of a cluster rounding would choose one.
    ids = random.permuted(np.tile(np.arange(1, SOURCES, dtype="int32"), (2, 1)), axis=1)
    source = {
        "source_ids": ids[:, :SOURCE_LENGTH],
        "num_source_tokens": np.array([SOURCE_LENGTH, 6], "int32"),
    }
    return source, random.integers(WORDS, size=(2, LENGTH), dtype="int32")


def sources_of(source):
    return [ids[:count] for ids, count in zip(source["source_ids"], source["num_source_tokens"], strict=True)]


def logits_of(model, rows):
    """Return the logits (2, T, V) of each target, of a call with its source alone and nothing padded."""
    source, targets = rows
    before = np.pad(targets[:, :-1], [(0, 0), (1, 0)])
    inputs = [
        {"encoder_token_ids": ids[None], "decoder_token_ids": row[None]}
        for ids, row in zip(sources_of(source), before, strict=True)
    ]
    return np.concatenate([numbers(model(each)) for each in inputs])


def decode(run, source, choose, num_steps):
    """Drives the files as an application would: the source once, then a token of each row a step.

    Args:
        run: of `export`.
        source: inputs of `encode`.
        choose: function of the number of a step and the logits of the one before, None at first, to ids (2,).
        num_steps: number of steps.

    Returns:
        The logits (2, num_steps, V).
    """
    inputs, logits = {**run.zeros("decode"), **run("encode", source)}, [None]
    for step in range(num_steps):
        inputs["token_ids"][:, 0], inputs["index"][:] = choose(step, logits[-1]), step
        outputs = run("decode", inputs)
        inputs |= {name: outputs["new_" + name] for name in inputs if "new_" + name in outputs}
        logits.append(outputs["logits"])
    return np.stack(logits[1:], axis=1)


def test_targets_are_scored_given_their_sources_padded_or_not(model, run, rows):
    source, targets = rows
    log_probs = numbers(keras.ops.log_softmax(logits_of(model, rows)))
    wanted = -np.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
    found = run("score", {**source, "token_ids": targets})["nats"]
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)
    other = run("score", {**source, "num_source_tokens": np.array([3, 6], "int32"), "token_ids": targets})["nats"]
    assert np.abs(other - found)[0].max() > 0.01


def test_steps_after_a_source_are_the_full_pass(model, run, rows):
    source, targets = rows
    before = np.pad(targets, [(0, 0), (1, 0)])
    found = decode(run, source, lambda step, logits: before[:, step], LENGTH)
    np.testing.assert_allclose(found, logits_of(model, rows), atol=TOLERANCE)


def test_models_that_do_not_fit_are_errors_that_name_the_reason(tmp_path):
    for settings, message in [
        ({"attention": [{**ROUTING, "selection": "top_k"}]}, r"with a cache: .*`signatures=\('score',\)` to leave"),
        (
            {"of_encoder": {"vocabulary_size": None, "embedding": {"dim": 5}}},
            "`model`.*token ids, .*features of size 5",
        ),
        ({"of_encoder": {"embedding": {"grid": (2, 5)}}}, "`source_length` must be at most the 10 positions.*=13"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_litert(make(**settings), tmp_path / "model.tflite", **SIZES, source_length=SOURCE_LENGTH)


@pytest.mark.pages
def test_the_example_of_the_page_writes_the_targets_of_the_model(tmp_path, monkeypatch):
    translator = make({"vocabulary_size": 120})
    made, loop = page_blocks()[3:]
    run_examples(made, tmp_path, monkeypatch, tsa=tsa, translator=translator)
    found = [int(number) for number in re.findall(r"\d+", run_examples(loop, tmp_path, monkeypatch))]
    assert found == translator.generate([74, 99, 110, 110, 113, 1], 19).tolist()
    assert len(list((tmp_path / "translator_onnx").iterdir())) == 3
