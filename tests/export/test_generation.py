"""SavedModels of language models: generated text."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.export.serving import LOCAL, ROUTING, TEXTS, export, generate, make_model
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.trainers.shared import sampling
from tf_sparse_attention.trainers.tasks.task import Request


def test_the_exported_text_is_that_of_the_model_in_this_process(model, served):
    ids = [ByteTokenizer().tokenize(text[:12]) for text in TEXTS]
    prompts = [ByteTokenizer().detokenize_bytes(row) for row in ids]
    generator = Generator(model, run_eagerly=True)  # compiling takes longer than these few tokens
    for seed, strategy in ((-5, Sampling(top_p=0.9)), (1, Sampling(temperature=0.0, top_p=0.9))):
        rows = generator.generate(ids, max_length=15, strategy=strategy, seed=seed)
        result = generate(served, prompts, max_length=15, temperature=strategy.temperature, seed=seed)
        assert result["text_bytes"] == [ByteTokenizer().detokenize_bytes(row.token_ids) for row in rows]
        assert [text.decode() for text in result["text"]] == [ByteTokenizer().detokenize(row.token_ids) for row in rows]
        assert result["num_tokens"] == [len(row.token_ids) for row in rows]
        np.testing.assert_allclose(result["log_prob"], [row.log_probs.sum() for row in rows], atol=1e-4)
    # A row is the same in every batch and for every length.
    assert generate(served, prompts[:1], 15, 0.0)["text_bytes"] == result["text_bytes"][:1]
    assert result["text_bytes"][0].startswith(generate(served, prompts[:1], 13, 0.0)["text_bytes"][0])


@pytest.mark.full
def test_samples_of_a_saved_model_are_those_of_its_model(model, exported):
    local = sampling.LocalModelSource(model, ByteTokenizer())
    served = sampling.SavedModelSource(exported)
    request = Request(TEXTS[2], None, 2, 3, -3, None, {"temperature": 0.7, "top_p": 0.9})
    local.model._generator = Generator(model, run_eagerly=True)
    wanted, found = (sampling.generate(source, request).samples for source in (local, served))
    for one, other in zip(found, wanted, strict=True):
        assert one.pop("log_prob") == pytest.approx(other.pop("log_prob"), abs=2e-3)
        assert one == other
    with pytest.raises(ValueError, match=r"only has the settings temperature and top_p\. Received: top_k\."):
        sampling.generate(served, Request(b"a", settings={"top_k": 3}))


@pytest.mark.full
def test_with_xla_the_texts_are_the_same(tmp_path):
    model, found = make_model(), []
    for jit_compile in (False, True):
        path = export(model, tmp_path / str(jit_compile), jit_compile=jit_compile)
        found.append(generate(tf.saved_model.load(path).signatures, ["ab", "", "x", "y"], max_length=5))
    # XLA computes sums in another order.
    assert found[0].pop("log_prob") == pytest.approx(found[1].pop("log_prob"), rel=1e-6)
    assert found[0] == found[1]


@pytest.mark.full
def test_a_row_ends_with_its_document(tmp_path):
    model, texts = make_model([LOCAL, ROUTING]), ("ab", "", "x", "y")
    model.backbone.embedding.embeddings.assign(3 * model.backbone.embedding.embeddings)
    model.output_bias.assign([3.0 if number == 1 else 0.0 for number in range(258)])
    ending = tf.saved_model.load(export(model, tmp_path / "new", jit_compile=False)).signatures
    prompts = [ByteTokenizer().tokenize(text) for text in texts]
    rows = Generator(model, run_eagerly=True).generate(prompts, 40, Sampling(top_p=0.9), seed=5)
    assert generate(ending, texts, max_length=40)["num_tokens"] == [len(row.token_ids) for row in rows]
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
