"""Heads on encoders: classes of sequences and of tokens, and answers as spans."""

import keras
import numpy as np
import pytest

from tests.contracts import to_numpy
from tests.draws import first
from tf_sparse_attention.convert import arguments_of, replace_attention
from tf_sparse_attention.layers import ClusteredAttention
from tf_sparse_attention.models import Backbone, Encoder, SequenceClassifier, SpanAnswerer, TokenClassifier

V, D, T = 30, 8, 9
LENGTHS = np.array([T, 4])
MASK = np.arange(T) < LENGTHS[:, None]
IDS = np.random.default_rng(0).integers(1, V, (2, T)).astype("int32")
INPUTS = {"token_ids": IDS, "padding_mask": MASK}
HEADS = {"num_heads": 2, "key_dim": 4}


def backbone(layer="LocalAttention", seed=0, **arguments):
    further = {"window": 3} if layer == "LocalAttention" else {"num_clusters": 2}
    return Backbone(V, 1, D, [{"layer": layer, **HEADS, **further}], 12, causal=False, seed=seed, **arguments)


def bert_like():
    part = {"layer": "GlobalLocalAttention", **HEADS, "window": 3, "num_first_global": 1}
    return Encoder(V, 1, D, 12, [part], max_length=16)


def swapped():
    """Return a functional model, of token ids and their padding mask, with its dense attention replaced."""
    dtypes = {"token_ids": "int32", "padding_mask": "bool"}
    inputs = {name: keras.Input((None,), dtype=dtype, name=name) for name, dtype in dtypes.items()}
    x = keras.layers.Embedding(V, D)(inputs["token_ids"])
    x = keras.layers.MultiHeadAttention(2, 4)(x, x, attention_mask=inputs["padding_mask"][:, None])

    def make_layer(attention):
        return ClusteredAttention(**arguments_of(attention), num_clusters=3, top_k=4)

    return replace_attention(keras.Model(inputs, x), make_layer, print_fn=None)


MODELS = {
    "sequence": lambda encoder, **options: SequenceClassifier(encoder, 3, **options),
    "token": lambda encoder, **options: TokenClassifier(encoder, 3, **options),
    "span": lambda encoder, **options: SpanAnswerer(encoder, 4, **options),
}
SHAPES = {"sequence": (2, 3), "token": (2, T, 3), "span": (2, 2, T)}


@pytest.mark.parametrize(
    ("name", "encoder"), first([("sequence", swapped), ("token", bert_like), ("span", backbone)], 2)
)
def test_a_model_on_any_encoder_is_saved_and_loaded(name, encoder, tmp_path):
    model = MODELS[name](encoder(), dropout=0.1)
    logits = to_numpy(model(INPUTS))
    assert logits.shape == SHAPES[name] and logits.dtype == "float32"
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.dropout == 0.1
    np.testing.assert_array_equal(loaded(INPUTS), logits)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_the_vector_of_a_sequence_is_that_of_its_first_token_or_the_mean_without_padding(pooling):
    model = SequenceClassifier(backbone(), 3, pooling)
    vectors = to_numpy(model.encoder(INPUTS))
    means = [row[:length].mean(axis=0) for row, length in zip(vectors, LENGTHS, strict=True)]
    expected = vectors[:, 0] if pooling == "first" else np.stack(means)
    kernel, bias = map(to_numpy, model.head.weights)
    np.testing.assert_allclose(model(INPUTS), expected @ kernel + bias, atol=1e-5)


def test_without_a_mask_the_mean_is_that_of_all_tokens():
    model = SequenceClassifier(backbone(), 3, "mean")
    whole = {"token_ids": IDS, "padding_mask": np.ones_like(MASK)}
    np.testing.assert_allclose(model(IDS), model(whole), atol=1e-6)
    nothing = {"token_ids": IDS, "padding_mask": np.zeros_like(MASK)}
    np.testing.assert_allclose(model(nothing), np.tile(model.head.bias, (2, 1)), atol=1e-6)


def test_the_pooler_is_the_encoders_own():
    model = SequenceClassifier(bert_like(), 3, "pooler")
    pooled = to_numpy(model.encoder(INPUTS)["pooled_output"])
    np.testing.assert_allclose(model(INPUTS), pooled @ to_numpy(model.head.kernel), atol=1e-5)


@pytest.mark.parametrize("name", first(MODELS, 1))
def test_logits_are_float32_and_alike_in_half_precision(name):
    # Rounding is at most 0.03 with seeds 1 to 4, and 0.06 with seed 0.
    models = [MODELS[name](backbone(dtype=dtype, seed=1), dtype=dtype) for dtype in ("float32", "mixed_bfloat16")]
    models[1].set_weights(models[0].get_weights())
    exact, rounded = (to_numpy(model(INPUTS)) for model in models)
    assert models[1].head.compute_dtype == "bfloat16" and rounded.dtype == "float32"
    seen = exact > -1e20
    np.testing.assert_allclose(rounded[seen], exact[seen], atol=0.05)


def test_spans_are_of_tokens_that_may_be_chosen():
    model = SpanAnswerer(backbone(), max_answer_length=3)
    model.compile(run_eagerly=True)  # which takes less than a program of so few tokens
    allowed = (np.arange(T) >= 2) & (np.arange(T) != 5)
    inputs = {**INPUTS, "answer_mask": np.stack([allowed, np.arange(T) >= 6])}  # the second row: padding alone
    found, logits = model.answer(inputs), to_numpy(model(inputs))[0]
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    spans = [(s, e) for s in range(T) for e in range(s, min(s + 3, T)) if allowed[s : e + 1].all()]
    best = max(spans, key=lambda span: log_probs[0, span[0]] + log_probs[1, span[1]])
    assert (found["start"][0], found["end"][0]) == best
    assert found["log_prob"][0] == pytest.approx(log_probs[0, best[0]] + log_probs[1, best[1]], rel=1e-5)
    assert (found["start"][1], found["end"][1], found["log_prob"][1]) == (-1, -1, -np.inf)


def test_what_does_not_fit_is_refused(subtests):
    causal = Backbone(V, 1, D, [{"layer": "LocalAttention", "window": 3, **HEADS}])
    cases = [
        (lambda: SequenceClassifier("x", 3), "`encoder`"),
        (lambda: TokenClassifier(causal, 3), "`encoder`"),
        (lambda: SpanAnswerer(keras.layers.Dense(3)), "`encoder`"),
        (lambda: SequenceClassifier(backbone(), 0), "`num_classes`"),
        (lambda: TokenClassifier(backbone(), 0), "`num_classes`"),
        (lambda: SequenceClassifier(backbone(), 3, "last"), "`pooling`"),
        (lambda: SequenceClassifier(backbone(), 3, dropout=1.5), "`dropout`"),
        (lambda: SequenceClassifier(backbone(), 3, poolin="mean"), "`poolin`"),
        (lambda: SpanAnswerer(backbone(), 0), "`max_answer_length`"),
        (lambda: SequenceClassifier(backbone(), 3, "pooler")(IDS), "`pooling`"),
        (lambda: SequenceClassifier(backbone(), 3)(IDS + V), "`inputs`"),
    ]
    for make, message in cases:
        with subtests.test(str(make)), pytest.raises(ValueError, match=message):
            make()
