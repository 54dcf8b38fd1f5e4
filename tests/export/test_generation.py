"""SavedModels of language models: generated text."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.export.serving import TEXTS, export, generate, make_model
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.models.generator import Generator


def test_the_exported_text_is_that_of_the_model_in_this_process(model, served):
    prompts = [text[:12] for text in TEXTS]
    ids = [ByteTokenizer().tokenize(prompt) for prompt in prompts]
    generator = Generator(model, run_eagerly=True)  # compiling takes longer than these few tokens
    rows = generator.generate(ids, max_length=15, strategy=Sampling(top_p=0.9), seed=-5)
    expected = [ByteTokenizer().detokenize_bytes(row.token_ids) for row in rows]
    result = generate(served, prompts, max_length=15, seed=-5)
    assert result["text_bytes"] == expected
    assert result["text"][0].decode("utf-8") == ByteTokenizer().detokenize(rows[0].token_ids)
    assert result["num_tokens"] == [len(row.token_ids) for row in rows]
    np.testing.assert_allclose(result["log_prob"], [row.log_probs.sum() for row in rows], atol=1e-4)


def test_generated_text_is_valid_utf_8_and_the_bytes_are_as_they_are(served):
    result = generate(served, ["ab", TEXTS[2], "", "x"])
    assert result["text_bytes"][1].startswith(TEXTS[2])
    assert result["text"][1].decode("utf-8").startswith("\ufffd\ufffd not UTF-8")


@pytest.mark.full
def test_a_row_is_the_same_in_every_batch_and_for_every_length(served):
    rows = generate(served, ["ab", "", "x", "y"], max_length=20)["text_bytes"]
    assert generate(served, ["ab", "", "z", "12"], max_length=20)["text_bytes"][:2] == rows[:2]
    assert generate(served, ["ab"], max_length=20)["text_bytes"] == rows[:1]
    assert rows[0].startswith(generate(served, ["ab"], max_length=9)["text_bytes"][0])


def test_text_follows_the_seed(served):
    first, again, other = (generate(served, ["ab", "", "x", "y"], seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["text_bytes"] != other["text_bytes"]


def test_temperature_0_is_the_same_for_every_seed(served):
    first, other = (generate(served, ["ab", "", "x", "y"], temperature=0.0, seed=seed) for seed in (1, 2))
    assert first == other


@pytest.mark.full
def test_a_row_ends_with_its_document(tmp_path):
    model = make_model()
    model.backbone.embedding.embeddings.assign(3 * model.backbone.embedding.embeddings)
    model.output_bias.assign([3.0 if number == 1 else 0.0 for number in range(258)])
    ending = tf.saved_model.load(export(model, tmp_path / "new", jit_compile=False)).signatures
    result = generate(ending, ["ab", "", "x", "y"], max_length=40)
    assert min(result["num_tokens"]) < 40
    rows = Generator(model, run_eagerly=True).generate(
        [ByteTokenizer().tokenize(text) for text in ("ab", "", "x", "y")], 40, Sampling(top_p=0.9), seed=5
    )
    assert result["num_tokens"] == [len(row.token_ids) for row in rows]
    assert any(row.finished for row in rows)


def test_no_prompts_give_no_texts(served):
    assert generate(served, []) == {"text": [], "text_bytes": [], "num_tokens": [], "log_prob": []}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 3}, "`max_length` must be positive and at least the length of each prompt. Received:.*3"),
        ({"max_length": 2**17}, "`max_length` must be at most 65536. Received:.*131072"),
        ({"temperature": -1.0}, "`temperature` must be a number of at least 0. Received:.*-1"),
        ({"temperature": math.nan}, "`temperature` must be a number of at least 0. Received:.*nan"),
        ({"top_p": 0.0}, r"`top_p` must be a number in \(0, 1\]. Received:.*0"),
        ({"top_p": 1.5}, r"`top_p` must be a number in \(0, 1\]. Received:.*1.5"),
    ],
)
def test_the_served_model_refuses_what_it_cannot_do(served, settings, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        generate(served, ["four"], **settings)


def test_an_empty_prompt_still_needs_a_length_of_1(served):
    with pytest.raises(tf.errors.InvalidArgumentError, match="`max_length` must be positive"):
        generate(served, [""], max_length=0)


@pytest.mark.full
def test_without_xla_the_texts_are_the_same(model, served, tmp_path):
    interpreted = tf.saved_model.load(export(model, tmp_path / "new", jit_compile=False)).signatures
    prompts = ["ab", "", "x", "y"]
    found, compiled = (generate(each, prompts, max_length=9) for each in (interpreted, served))
    assert found.pop("log_prob") == pytest.approx(compiled.pop("log_prob"), rel=1e-6)  # XLA orders sums as it likes
    assert found == compiled
