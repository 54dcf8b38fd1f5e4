"""SavedModels of language models: generated text."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.export.serving import LOCAL, TEXTS, export, generate, make_model
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


def test_text_follows_the_seed_unless_the_temperature_is_zero(served):
    prompts = ["ab", "", "x", "y"]
    first, again, other = (generate(served, prompts, max_length=9, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["text_bytes"] != other["text_bytes"]
    first, other = (generate(served, prompts, max_length=9, temperature=0.0, seed=seed) for seed in (1, 2))
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


def test_requests_that_do_not_fit_are_errors_that_name_the_input(served):
    assert generate(served, []) == {"text": [], "text_bytes": [], "num_tokens": [], "log_prob": []}
    for prompt, settings, message in [
        ("four", {"max_length": 3}, "`max_length` must be positive and at least the length of each prompt.*3"),
        ("", {"max_length": 0}, "`max_length` must be positive"),
        ("four", {"max_length": 2**17}, "`max_length` must be at most 65536.*131072"),
        ("four", {"temperature": -1.0}, "`temperature`.*-1"),
        ("four", {"temperature": math.nan}, "`temperature`.*nan"),
        ("four", {"top_p": 0.0}, "`top_p`.*0"),
        ("four", {"top_p": 1.5}, "`top_p`.*1.5"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
            generate(served, [prompt], **settings)


def test_with_xla_the_texts_are_the_same(tmp_path):
    model, found = make_model([LOCAL]), []
    for jit_compile in (False, True):
        path = export(model, tmp_path / str(jit_compile), jit_compile=jit_compile)
        found.append(generate(tf.saved_model.load(path).signatures, ["ab", "", "x", "y"], max_length=5))
    # XLA computes sums in another order.
    assert found[0].pop("log_prob") == pytest.approx(found[1].pop("log_prob"), rel=1e-6)
    assert found[0] == found[1]
