"""Speculative decoding: the tokens of the target model whatever the draft model is, exactly distributed."""

import keras
import numpy as np
import pytest
from scipy import stats

from tests.draws import first
from tests.models import text_models
from tf_sparse_attention.generation import Sampling, Speculative
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.patterns import First, Nearest, SelectedBlocks, Window

PROMPTS = [[3, 4], [], [5] * 9, [7, 8, 9]]


def make_model(seed=0, pattern=None, vocabulary_size=12, scale=3.0, **options):
    return text_models.make_model(pattern or Window(6) | First(2), seed, vocabulary_size, scale, **options)


# Drafts that agree always, often and rarely.
DRAFTS = [(1, Window(4)), (0, Window(2)), (0, Window(6) | First(2))]
TARGETS = [Window(6) | First(2) | Nearest(2, 4), SelectedBlocks(4, 2), Window(6) | First(2)]
CASES = [(DRAFTS[0], TARGETS[2], 4), (DRAFTS[1], TARGETS[1], 1), *((draft, TARGETS[0], 4) for draft in DRAFTS)]


@pytest.mark.parametrize(("draft", "pattern", "count"), first(CASES, 1))
def test_greedy_tokens_are_those_of_the_target_model(draft, pattern, count):
    target, draft = make_model(pattern=pattern), make_model(*draft)
    for stops in (None, (1, 2)):
        expected, log_probs = target.generate(PROMPTS, 24, "greedy", stop_token_ids=stops, return_log_probs=True)
        strategy = Speculative(draft, count)
        found, own = target.generate(PROMPTS, 24, strategy, stop_token_ids=stops, return_log_probs=True)
        for rows in zip(expected, found, strict=True):
            np.testing.assert_array_equal(*rows)
        for rows in zip(log_probs, own, strict=True):
            np.testing.assert_allclose(*rows, atol=1e-5)


@pytest.mark.full
def test_samples_follow_the_distribution_of_the_target_model():
    size, number = 6, 10_000
    target, draft = make_model(vocabulary_size=size, scale=2.0), make_model(1, Window(2), size, 2.0)
    strategy = Speculative(draft, 2, Sampling(temperature=0.8, top_k=4))
    rows = target.generate([[3]] * number, 4, strategy, stop_token_ids=None, seed=list(range(number)))
    counts = np.zeros((size,) * 3)
    np.add.at(counts, tuple(np.stack(rows)[:, 1:].T), 1)
    expected = np.ones((1,))
    prefixes = np.array([[0, 3]])
    for _ in range(3):
        logits = keras.ops.convert_to_numpy(target(prefixes))[:, -1].astype("float64")
        logits[:, 0] = -np.inf  # padding
        logits[logits < np.sort(logits, axis=1)[:, -4:-3]] = -np.inf
        weights = np.exp((logits - logits.max(1, keepdims=True)) / 0.8)
        expected = (expected[:, None] * weights / weights.sum(1, keepdims=True)).reshape(-1)
        prefixes = np.concatenate([prefixes.repeat(size, 0), np.tile(np.arange(size), len(prefixes))[:, None]], 1)
    expected, counts = number * expected, counts.reshape(-1)
    assert counts[expected == 0].sum() == 0
    rare = (expected > 0) & (expected < 5)
    cells = expected >= 5
    observed = np.append(counts[cells], counts[rare].sum())
    wanted = np.append(expected[cells], expected[rare].sum())
    keep = wanted > 0
    assert stats.chisquare(observed[keep], wanted[keep]).pvalue > 1e-3
    # A draft model as a sampler of its own has another distribution.
    other = np.stack(
        draft.generate([[3]] * number, 4, strategy.strategy, stop_token_ids=None, seed=list(range(number)))
    )
    wrong = np.zeros((size,) * 3)
    np.add.at(wrong, tuple(other[:, 1:].T), 1)
    wrong = np.append(wrong.reshape(-1)[cells], 0)
    assert stats.chisquare(wrong[keep] * wanted[keep].sum() / wrong[keep].sum(), wanted[keep]).pvalue < 1e-6


@pytest.mark.full
def test_a_stream_of_a_speculative_strategy_is_what_generate_returns():
    target, draft = make_model(), make_model(*DRAFTS[1])
    strategy = Speculative(draft, 3, "random")
    pieces = [*target.stream([5, 6], 20, strategy, seed=2, stop_token_ids=None, chunk_size=3)]
    whole = target.generate([5, 6], 20, strategy, seed=2, stop_token_ids=None)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


@pytest.mark.full
def test_a_program_gives_the_same_tokens():
    models = [[make_model(*own, run_eagerly=eager) for own in ((), DRAFTS[1])] for eager in (True, False)]
    found = [target.generate(PROMPTS, 24, Speculative(draft, 3), stop_token_ids=None) for target, draft in models]
    for rows in zip(*found, strict=True):
        np.testing.assert_array_equal(*rows)
    target, draft = models[1]
    assert target.compile_stats() == {"read": 1, "speculate": 1}
    for each in (target, draft):  # another draft model does not replace the program of the first
        target.generate(PROMPTS, 24, Speculative(each, 3), stop_token_ids=None)
    assert target.compile_stats() == {"read": 1, "speculate": 2}


def test_wrong_arguments_of_speculative_decoding_are_named(subtests):
    target, draft = make_model(), make_model()
    routed = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 2, "cluster_size": 3}
    routed |= {"selection": "top_k"}
    for name, call in [
        ("num_draft_tokens", lambda: Speculative(draft, 0)),
        ("strategy", lambda: Speculative(draft, strategy="beam")),
        ("strategy", lambda: Speculative(draft, strategy=Sampling(repetition_penalty=1.1))),
        ("draft", lambda: Speculative("draft")),
        ("draft", lambda: Speculative(target.backbone)),
        ("draft", lambda: Speculative(LanguageModel(Backbone(12, 1, 8, [routed])))),
        ("draft", lambda: target.generate([3], 9, Speculative(make_model(vocabulary_size=13)))),
        ("max_length", lambda: target.generate([3], 20, Speculative(make_model(embedding={"grid": (4, 4)})))),
        ("strategy", lambda: target.chat_session(9, Speculative(draft))),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            call()
