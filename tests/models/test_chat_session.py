"""Chat sessions: turns equal one sequence, few programs serve them, and copies and files continue them."""

import itertools

import numpy as np
import pytest

from tests.draws import first
from tests.models import text_models
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.models import Backbone, ChatSession, LanguageModel
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.patterns import First, Nearest, SelectedBlocks, Window

STREAMING = Window(6) | First(2)
ROUTED = STREAMING | Nearest(3, 4)


def make_model(pattern=ROUTED, run_eagerly=True, **options):
    return text_models.make_model(pattern, run_eagerly=run_eagerly, **options)


@pytest.fixture(scope="module")
def model():
    """A model whose programs all tests share."""
    return make_model(run_eagerly=False)


def make_session(model, max_length=100, strategy="greedy", **settings):
    return model.chat_session(max_length, strategy, **{"stop_token_ids": None, **settings})


def answer(session, count, **settings):
    return np.concatenate([*session.generate(count, **settings)])


@pytest.mark.full
def test_ten_turns_equal_generation_from_the_whole_conversation_and_need_four_programs(model):
    session, rng, eager = make_session(model, 400), np.random.default_rng(0), Generator(model, run_eagerly=True)
    for turn in range(10):
        turn_ids = rng.integers(2, 258, rng.integers(0, 40))
        session.append(turn_ids)
        before = session.token_ids
        new = answer(session, 5, chunk_size=4)
        if turn in (0, 4, 9):
            (row,) = eager.generate([before], len(before) + 5, "greedy", stop_token_ids=None)
            np.testing.assert_array_equal(np.concatenate([before, new]), row.token_ids)
    assert sum(model.compile_stats().values()) <= 4


@pytest.mark.full
def test_twenty_lengths_of_prompts_need_six_programs():
    model = make_model(Window(4), run_eagerly=False)
    for length in range(1, 600, 30):
        model.generate(np.full(length, 9), 640, "greedy", stop_token_ids=None if length < 9 else [*range(258)])
    assert sum(model.compile_stats().values()) <= 6


@pytest.mark.parametrize("pattern", first([ROUTED, SelectedBlocks(4, 2), STREAMING], 1))
def test_copies_and_files_continue_a_session(pattern, tmp_path):
    model = make_model(pattern)
    session = make_session(model)
    session.append([5, 6, 7])
    answer(session, 3)
    other = session.fork()
    other.append([8])
    answer(other, 4)
    assert len(session.token_ids) == 6 and len(other.token_ids) == 11
    session.save(tmp_path / "session.npz")
    model = make_model(pattern)  # with other automatic names
    loaded = make_session(model)
    loaded.load(tmp_path / "session.npz")
    for each in (session, loaded):
        each.append([9, 9])
    np.testing.assert_array_equal(answer(session, 6), answer(loaded, 6))
    np.testing.assert_array_equal(session.token_ids, loaded.token_ids)
    assert session.cache_bytes == loaded.cache_bytes > 0
    for name, wrong in {
        "architecture and weights": make_session(make_model(pattern, seed=4)),
        "max_length": make_session(model, 99),
    }.items():
        with pytest.raises(ValueError, match=f"same {name}"):
            wrong.load(tmp_path / "session.npz")
    content = (tmp_path / "session.npz").read_bytes()
    for wrong in (content[:-100], b"text", b""):
        (tmp_path / "wrong.npz").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"that `ChatSession\.save` wrote"):
            session.load(tmp_path / "wrong.npz")
    np.savez(tmp_path / "other.npz", token_ids=[5])
    np.save(tmp_path / "array.npy", [5])
    for name in ("other.npz", "array.npy"):
        with pytest.raises(ValueError, match=r"that `ChatSession\.save` wrote"):
            session.load(tmp_path / name)


@pytest.mark.full
def test_sampled_turns_depend_on_the_seed_and_not_on_the_size_of_pieces():
    model = make_model()
    found = []
    for seed, chunk_size in ((1, 1), (1, 5), (2, 5)):
        session = make_session(model, strategy=Sampling(temperature=0.9, repetition_penalty=1.2), seed=seed)
        session.append([5])
        found.append(answer(session, 10, chunk_size=chunk_size).tolist())
    assert found[0] == found[1] != found[2]
    one, other = (make_session(model, strategy="random").fork(seed) for seed in (None, 5))
    assert answer(one, 9).tolist() != answer(other, 9).tolist()


@pytest.mark.full
def test_text_of_a_session_and_tokens_of_a_consumer_that_stops_early():
    model, tokenizer = make_model(), ByteTokenizer()
    session = make_session(model, tokenizer=tokenizer)
    session.append("Hé")
    text = "".join(session.generate(9, chunk_size=2))
    assert tokenizer.detokenize(session.token_ids) == "Hé" + text
    ids = make_session(model)
    ids.append(tokenizer.tokenize("Hé"))
    list(itertools.islice(ids.generate(9), 4))
    np.testing.assert_array_equal(ids.token_ids, session.token_ids[: len(ids.token_ids)])
    assert len(ids.token_ids) == len(tokenizer.tokenize("Hé")) + 4


@pytest.mark.full
def test_generate_and_stream_continue_a_session():
    model = make_model()
    expected, session = make_session(model), make_session(model)
    for prompt in ([5, 6], [7]):
        expected.append(prompt)
        answer(expected, 4)
    first_turn = model.generate([5, 6], 6, cache=session)  # by the strategy of the session
    second_turn = np.concatenate([*model.stream([7], 5, "greedy", cache=session)])
    np.testing.assert_array_equal(np.concatenate([first_turn, second_turn]), expected.token_ids)


@pytest.mark.full
def test_a_session_without_end_and_one_that_is_full():
    model = make_model(STREAMING)
    endless = make_session(model, None, positions_in_cache=True)
    endless.append([5] * 20)
    answer(endless, 30, chunk_size=8)
    assert len(endless.token_ids) == 50
    one, other = endless.generate(3), endless.generate(3)
    next(one)
    next(other)
    with pytest.raises(ValueError, match="must not change while it generates"):
        next(one)
    full = make_session(model, 10)
    full.append([5] * 7)
    assert len(answer(full, None)) == 3
    with pytest.raises(ValueError, match="`prompt` must fit into the 10 tokens"):
        full.append([5])
    with pytest.raises(ValueError, match="`max_length` of the session must leave room"):
        full.generate()
    assert "10 tokens of 10" in repr(full)


def test_wrong_arguments_of_sessions_are_named(subtests):
    model, full = make_model(), make_model(embedding={"grid": (4, 4)})
    session = make_session(model)
    for name, call in [
        ("max_length", lambda: make_session(model, 0)),
        ("max_length", lambda: make_session(full, 17)),
        ("max_length", lambda: make_session(make_model(SelectedBlocks(4, 2)), None)),
        ("strategy", lambda: make_session(model, strategy="beam")),
        ("strategy", lambda: make_session(make_model(STREAMING), None, Sampling(repetition_penalty=1.2))),
        ("positions_in_cache", lambda: make_session(model, 9, positions_in_cache=True)),
        ("seed", lambda: make_session(model, seed="1")),
        ("stop_token_ids", lambda: make_session(model, stop_token_ids=999)),
        ("prompt", lambda: session.append([[1], [2]])),
        ("prompt", lambda: session.append([999])),
        ("tokenizer", lambda: session.append("text")),
        ("max_new_tokens", lambda: session.generate(0)),
        ("chunk_size", lambda: session.generate(1, chunk_size=0)),
        ("cache", lambda: make_model().generate([5], 9, cache=session)),
        ("prompts", lambda: model.generate([[5], [6]], 9, cache=session)),
        ("max_length", lambda: model.generate([5, 6], 1, cache=session)),
        ("seed", lambda: model.generate([5], 9, seed=1, cache=session)),
        ("stop_token_ids", lambda: model.generate([5], 9, stop_token_ids=None, cache=session)),
        ("positions_in_cache", lambda: model.stream([5], 9, positions_in_cache=True, cache=session)),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}`"):
            call()
    routed = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 2, "cluster_size": 3}
    uncached = LanguageModel(Backbone(20, 1, 8, [{**routed, "selection": "top_k"}]))
    with pytest.raises(ValueError, match="decodes with a cache"):
        ChatSession(uncached, 9)
