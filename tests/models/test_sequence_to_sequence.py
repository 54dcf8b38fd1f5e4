"""An encoder-decoder: what it reads, what it writes, and what is refused."""

import itertools

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.contracts import assert_close, to_numpy
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence, language_model_loss
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.models.programs import Programs

V, D, S, T = 40, 16, 11, 9
NEAR = 1e-4
HEADS = {"num_heads": 2, "key_dim": 8}
LOCAL = [{"layer": "LocalAttention", "window": 4, "position": "rotary", **HEADS}]
DENSE = [{"layer": "DenseAttention", **HEADS}]
BLOCKS = [{"layer": "LocalAttention", "block_size": 3, "key_block_size": 4, **HEADS}]
SOURCES = np.random.default_rng(0).integers(2, V, (3, S)).astype("int32")
TARGETS = np.random.default_rng(1).integers(2, V, (3, T)).astype("int32")
LENGTHS = np.array([S, 7, 2])
MASK = np.arange(S) < LENGTHS[:, None]


def shifted(targets):
    return np.pad(targets, [(0, 0), (1, 0)])[:, :-1]


def inputs_of(sources=SOURCES, targets=TARGETS, **others):
    return {"encoder_token_ids": sources, "decoder_token_ids": shifted(targets), **others}


PADDED = inputs_of(encoder_padding_mask=MASK)


def make(cross=DENSE, shared=False, embedding=None, dtype=None, scale=3, num_layers=1):
    keras.utils.set_random_seed(3)
    common = {"num_layers": num_layers, "hidden_dim": D, "attention": LOCAL, "intermediate_dim": 24}
    common |= {"seed": 3, "dtype": dtype}
    encoder = Backbone(None if shared else V, causal=False, **common)
    decoder = Backbone(V, cross_attention=cross, embedding=embedding, **common)
    model = SequenceToSequence(encoder, LanguageModel(decoder, tie_embeddings=shared, dtype=dtype), dtype=dtype)
    for weight in model.trainable_weights:  # far from the start, where all tokens are about as likely
        weight.assign(scale * weight if "kernel" in weight.path else weight)
    return model


@pytest.fixture(scope="module", params=["shared", pytest.param("blocks", marks=pytest.mark.full)])
def model(request):
    return make(BLOCKS, num_layers=2) if request.param == "blocks" else make(shared=True)


@pytest.fixture(scope="module")
def eager(model):
    """The same model, whose generation runs without programs: compiling takes longer than a few tokens."""
    model.decoder._generator, model._programs = Generator(model.decoder, run_eagerly=True), Programs(model, True)
    return model


def test_the_decoder_reads_what_the_encoder_returns(model):
    embedded = SOURCES if model.encoder.vocabulary_size else model.decoder.backbone.embedding(SOURCES)
    name = "token_ids" if model.encoder.vocabulary_size else "features"
    encoded = model.encoder({name: embedded, "padding_mask": MASK})
    given = {"encoder_sequence": encoded, "encoder_padding_mask": MASK, "token_ids": shifted(TARGETS)}
    assert_close(model(PADDED), to_numpy(model.decoder(given)), NEAR)


def test_targets_are_extended_and_taken_back_after_the_sources_are_encoded(model):
    whole, inputs = to_numpy(model(PADDED)), shifted(TARGETS)
    cache = model.init_cache(PADDED, max_length=T, rewind=3)
    first_logits, cache = model.extend(inputs[:, :6], cache)
    more, cache = model.extend(inputs[:, 4:], model.rewind(cache, 4))
    assert_close(first_logits, whole[:, :6], NEAR)
    assert_close(more, whole[:, 4:], NEAR)


def test_padding_and_other_rows_change_nothing(model):
    whole, changed = to_numpy(model(PADDED)), np.where(MASK, SOURCES, 5)
    assert_close(model(inputs_of(changed, encoder_padding_mask=MASK)), whole, 0)
    for row, length in enumerate(LENGTHS):
        alone = model(inputs_of(SOURCES[row : row + 1, :length], TARGETS[row : row + 1]))
        assert_close(alone, whole[row : row + 1], NEAR)
    with_padding = np.pad(TARGETS, [(0, 0), (0, 3)], constant_values=7)
    mask = np.pad(np.ones_like(TARGETS, "bool"), [(0, 0), (0, 3)])
    padded = model(inputs_of(targets=with_padding, encoder_padding_mask=MASK, decoder_padding_mask=mask))
    assert_close(padded[:, :T], whole, NEAR)


def test_packed_documents_are_those_of_rows_of_their_own():
    model = make()
    packed = {
        "encoder_token_ids": np.concatenate([SOURCES[:1], SOURCES[1:2, :7]], axis=1),
        "encoder_segment_ids": np.repeat([[1, 2]], [S, 7], axis=1),
        "decoder_token_ids": np.concatenate([shifted(TARGETS[:1]), shifted(TARGETS[1:2])], axis=1),
        "decoder_segment_ids": np.repeat([[1, 2]], T, axis=1),
    }
    alone = [model(inputs_of(SOURCES[:1], TARGETS[:1])), model(inputs_of(SOURCES[1:2, :7], TARGETS[1:2]))]
    assert_close(model(packed), np.concatenate([to_numpy(x) for x in alone], axis=1), NEAR)


def greedy(model, source, length):
    """Return the most likely target, each token from a pass over those so far and nothing else."""
    ids = []
    while len(ids) < length:
        logits = to_numpy(model(inputs_of(source[None], np.array([[*ids, 0]], "int32"))))[0, -1]
        ids.append(int(logits[1:].argmax()) + 1)
    return ids


def test_generation_is_that_of_full_passes(eager):
    sources = [row[:length] for row, length in zip(SOURCES, LENGTHS, strict=True)]
    found = eager.generate(sources, 4, stop_token_ids=None)
    assert [row.tolist() for row in found] == [greedy(eager, source, 4) for source in sources]
    assert np.concatenate(list(eager.stream(sources[1], 4, stop_token_ids=None))).tolist() == found[1].tolist()


def log_softmax(logits):
    return to_numpy(keras.ops.log_softmax(logits))


def test_a_beam_search_finds_the_likeliest_target(eager):
    source = SOURCES[1, :7]
    ids, log_probs = eager.generate([source], 2, tsa.generation.BeamSearch(num_beams=V), return_log_probs=True)
    pairs = np.array(list(itertools.product(range(1, V), repeat=2)), "int32")
    sources = np.repeat(source[None], len(pairs), axis=0)
    logits = to_numpy(eager(inputs_of(sources, pairs)))
    logits[..., 0] = -1e30
    scores = np.take_along_axis(log_softmax(logits), pairs[..., None], axis=-1)[..., 0]
    ends = pairs[:, 0] == 1  # a target that ends at once; the mean of its one score
    means = np.where(ends, scores[:, 0], scores.mean(axis=1))
    best = pairs[means.argmax()]
    assert ids[0].tolist() == (best[:1] if best[0] == 1 else best).tolist()
    assert_close(log_probs[0].mean(), means.max(), NEAR)


@pytest.mark.full
def test_compiled_generation_of_text_serves_sources_of_other_lengths():
    keras.utils.set_random_seed(3)
    tokenizer = ByteTokenizer()
    common = {"num_layers": 1, "hidden_dim": D, "attention": LOCAL}
    decoder = LanguageModel(Backbone(tokenizer.vocabulary_size, cross_attention=DENSE, **common))
    model = SequenceToSequence(Backbone(tokenizer.vocabulary_size, causal=False, **common), decoder)
    found = model.generate(["guten Tag", "ja"], 5, tokenizer=tokenizer, stop_token_ids=None)
    again = model.generate(["guten Tag, alle", "nein, danke"], 5, tokenizer=tokenizer, stop_token_ids=None)
    assert all(isinstance(text, str) and text for text in found + again)
    assert len(model._programs._made) == 1
    ids = model.generate([tokenizer.tokenize("ja")], 5, stop_token_ids=None)[0]
    assert tokenizer.detokenize(ids) == found[1]


@pytest.mark.full
def test_it_learns_and_is_the_same_when_loaded(tmp_path):
    model = make(embedding={"cutoffs": [10]})
    model.compile(keras.optimizers.Adam(1e-2), loss=language_model_loss(), run_eagerly=True)
    losses = [model.train_on_batch(PADDED, TARGETS) for _ in range(2)]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(PADDED), to_numpy(model(PADDED)), 0)
    nats = -np.take_along_axis(log_softmax(model(PADDED)), TARGETS[..., None], -1)[..., 0]
    assert_close(model({**PADDED, "targets": TARGETS}), nats, NEAR)


def test_what_does_not_fit_is_refused(subtests):
    model, language_model = make(), LanguageModel(Backbone(V, 1, D, LOCAL))
    small, causal = Backbone(V, 1, 8, LOCAL, causal=False), language_model.backbone
    clustered = [{"layer": "ClusteredAttention", **HEADS}]
    targets = np.ones((3, T), "int32")
    for message, run in [
        ("`encoder` must be a `Backbone` with causal", lambda: SequenceToSequence(causal, model.decoder)),
        ("`decoder` must be a `LanguageModel` whose", lambda: SequenceToSequence(model.encoder, language_model)),
        (r"same `hidden_dim`\. Received: 8 of the encoder, 16", lambda: SequenceToSequence(small, model.decoder)),
        ("a dictionary with 'decoder_token_ids' and 'encoder_token_ids' or", lambda: model(SOURCES)),
        ("must have one of 'encoder_token_ids' and 'encoder_feat", lambda: model({"decoder_token_ids": TARGETS})),
        (r"Received: \['decoder_token_ids', 'encoder_token_ids', 'mask'\]", lambda: model(inputs_of(mask=MASK))),
        ("both 'encoder_segment_ids' and", lambda: model(inputs_of(decoder_segment_ids=targets))),
        ("`encoder_token_ids` must be token ids from 0 to 39", lambda: model(inputs_of(SOURCES + V))),
        ("`sources` must have at least one token each", lambda: model.generate([[]], 5)),
        (r"`sources` must be text, or sequences of integers in \[1, 40\)", lambda: model.generate([[V]], 5)),
        (r"Id 0 is padding, see `padding_mask`\. Received", lambda: model.generate([[0, 1]], 5)),
        ("`tokenizer` must be given for sources of text", lambda: model.generate("Hund", 5)),
        (r"`source` must be one source\. Received: 2\.", lambda: next(model.stream([[3], [4]], 5))),
        ("key 'token_i", lambda: language_model({"token_ids": TARGETS, "encoder_sequence": TARGETS})),
        ("`encoder_sequence` must be given with `cross_attention`", lambda: model.decoder(TARGETS)),
        ("`backbone` must be a `Backbone` with a vocabulary", lambda: LanguageModel(Backbone(None, 1, D, LOCAL))),
        (r"features of shape \(batch, positions, 16\)", lambda: Backbone(None, 1, D, LOCAL)(SOURCES)),
        ("None with `dropout.tokens`", lambda: Backbone(None, 1, D, LOCAL, dropout={"tokens": 0.1})),
        ("`cross_attention` must be a list of", lambda: Backbone(V, 1, D, LOCAL, cross_attention=[{"layer": "Nope"}])),
        ("each query independently of other queries", lambda: Backbone(V, 1, D, LOCAL, cross_attention=clustered)),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            run()
