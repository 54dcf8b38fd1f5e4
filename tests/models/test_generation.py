"""Text from a language model: compiled programs against a slow loop, prompts, seeds and what is refused."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from tests.models import text_models
from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.patterns import Window

PROMPTS = [[74, 107], [], [5, 200, 9, 9, 31], [40] * 11]


def make_model(**settings):
    return text_models.make_model(Window(6), **settings)


@pytest.fixture(scope="module")
def model():
    """A model whose programs all tests share: those of four prompts or of one serve most of them."""
    return make_model()


@pytest.fixture(scope="module")
def traces(model):
    """Return a list with an element per trace of a decoding step of the shared programs."""
    found, step = [], model.generator.decoder.step
    model.generator.decoder = model.generator.decoder._replace(step=lambda *given: (found.append(1), step(*given))[1])
    return found


def eager(model):
    """Return a generator without programs: compiling takes longer than a few tokens."""
    return Generator(model, run_eagerly=True)


def slow_greedy(model, prompt, max_length, stop_id=1):
    """Return the most likely continuation, each token from a pass over the tokens so far and nothing else."""
    ids = list(prompt)
    while len(ids) < max_length and not (len(ids) > len(prompt) and ids[-1] == stop_id):
        logits = keras.ops.convert_to_numpy(model(np.array([[0, *ids]], "int32")))[0, -1]
        ids.append(int(logits[1:].argmax()) + 1)
    return ids


def lists(rows):
    return [row.token_ids.tolist() for row in rows]


def test_greedy_generation_equals_a_pass_for_each_token(model, traces):
    rows = model.generator.generate(PROMPTS, max_length=12, strategy="greedy")
    assert lists(rows) == [slow_greedy(model, prompt, 12) for prompt in PROMPTS]


def test_all_prompts_lengths_seeds_and_settings_of_a_kind_share_one_program(model, traces):
    strategy = Sampling(temperature=0.3, top_p=0.5)
    model.generator.generate(PROMPTS, max_length=14, strategy=strategy, seed=1, stop_token_ids=[1, 2])
    assert traces
    before = len(traces)
    strategy = Sampling(temperature=1.2, top_p=0.9)
    model.generator.generate(PROMPTS[::-1], 50, strategy=strategy, seed=[7, 8, 9, 9], stop_token_ids=None, num_ids=258)
    assert len(traces) == before


def test_a_row_is_finished_by_a_stop_id_that_it_drew():
    model = make_model()
    model.to_vocabulary.bias.assign(np.where(np.arange(258) == 7, 99.0, 0.0))
    generator = eager(model)
    rows = generator.generate([[5, 7], [5], [5, 7, 7]], max_length=3, stop_token_ids=7)
    assert [(row.token_ids.tolist(), row.finished) for row in rows] == [
        ([5, 7, 7], True),
        ([5, 7], True),
        ([5, 7, 7], False),  # a prompt as long as allowed
    ]
    assert [len(row.log_probs) for row in rows] == [1, 1, 0]
    assert not generator.generate([[5]], max_length=3, stop_token_ids=None)[0].finished


@pytest.mark.full
def test_ids_that_the_tokenizer_lacks_are_never_drawn():
    model = make_model(vocabulary_size=400)
    model._generator = eager(model)
    model.to_vocabulary.bias.assign(np.where(np.arange(400) < 258, 0.0, 9.0))
    assert max(model.generate([5], 12, stop_token_ids=None)) >= 258
    text, log_probs = model.generate("a", 12, tokenizer=ByteTokenizer(), stop_token_ids=None, return_log_probs=True)
    assert len(text.encode()) >= 12  # one byte a token
    assert np.isfinite(log_probs).all()


@pytest.mark.full
def test_other_weights_make_other_programs():
    model = make_model()
    before = model.generate([5], 10, "greedy", stop_token_ids=None)
    model.to_vocabulary.enable_lora(2)
    model.to_vocabulary.lora_kernel_a.assign(np.random.default_rng(1).normal(size=(16, 2)) * 3)
    model.to_vocabulary.lora_kernel_b.assign(np.random.default_rng(0).normal(size=(2, 258)) * 9)
    after = model.generate([5], 10, "greedy", stop_token_ids=None)
    assert after.tolist() == slow_greedy(model, [5], 10, stop_id=None)
    assert after.tolist() != before.tolist()


@pytest.mark.full
def test_padding_is_never_generated():
    model = make_model(vocabulary_size=3)
    model.to_vocabulary.bias.assign([9.0, 0.0, 0.0])
    (row,) = lists(eager(model).generate([[]], 10, Sampling(temperature=5.0), stop_token_ids=None))
    assert set(row) == {1, 2}


def test_text_goes_in_and_out(model):
    tokenizer = ByteTokenizer()
    texts = model.generate(["Hi ", b"\xff", "", "é"], max_length=12, seed=1, tokenizer=tokenizer)
    assert texts[0].startswith("Hi ")
    assert texts[1].startswith("\ufffd")
    ids = model.generate([[74, 107, 34], [257], [], [197, 171]], max_length=12, seed=1)
    assert texts == [tokenizer.detokenize(row) for row in ids]


def test_wrong_arguments_are_refused(model, subtests):
    ids = np.ones((2, 3), "int32")
    bidirectional = make_model(causal=False)
    cases = [
        ("prompts", lambda: model.generate([], 3)),
        ("prompts", lambda: model.generate(np.zeros((0, 4), "int32"), 3)),
        ("tokenizer", lambda: model.generate("Hi", 9)),
        ("max_length", lambda: model.generate([[1], [1, 2, 3, 4]], 3)),
        ("max_length", lambda: model.generate([3], 0)),
        ("max_length", lambda: model.generate([3], 2.5)),
        ("padding_mask", lambda: model.generate(ids, 14, padding_mask=[[True, True, True], [True, False, True]])),
        ("padding_mask", lambda: model.generate(ids, 14, padding_mask=np.ones((2, 2), bool))),
        ("prompt", lambda: model.stream([[5], [6]], 9)),
        ("strategy", lambda: next(model.stream([5], 9, strategy="beam"))),
        ("model", lambda: bidirectional.generate([3], 4)),
    ]
    values = {"prompts": ([258], [-1], [3, 0], [0, 0], [0.0, 3], [1.5], [[3]], [[3], [4, 5]])}
    values |= {"seed": (1.5, [1, 2, 3], [1, [2]], True, None), "strategy": ("best", "", 3, Sampling)}
    values |= {"stop_token_ids": (1.5, [[1]], [1, [2]], -1, 258, 2**32 + 73, "end")}
    for name, wrong in ((name, wrong) for name, each in values.items() for wrong in each):
        given = {name: [[1], wrong]} if name == "prompts" else {"prompts": [[], []], name: wrong}
        cases.append((name, lambda given=given: model.generate(**given, max_length=9)))
    for number, (name, call) in enumerate(cases):
        with subtests.test(f"{name}, case {number}"), pytest.raises(ValueError, match=f"`{name}`"):
            call()


def test_a_sampler_that_returns_no_ids_is_refused(model):
    for result in (lambda logits: logits, lambda logits: ops.max(logits, -1), lambda logits: np.int32(3)):
        with pytest.raises(ValueError, match="`sampler`"):
            eager(model).generate([[5], [6]], 4, lambda logits, keys, result=result: result(logits))


def test_one_prompt_gives_one_result_and_a_list_gives_a_list(model):
    rows = lists(model.generator.generate([[74, 107]], max_length=4, seed=2))
    for prompt in ([74, 107], (74, 107), np.array([74, 107]), [0, 74, 107]):
        assert model.generate(prompt, max_length=4, seed=2).tolist() == rows[0]
    for prompts in ([[74, 107]], [[0, 74, 107]], np.array([[74, 107]]), ops.convert_to_tensor([[74, 107]])):
        assert [row.tolist() for row in model.generate(prompts, max_length=4, seed=2)] == rows
    assert isinstance(model.generate("Hi", max_length=4, tokenizer=ByteTokenizer()), str)


def test_padding_on_either_side_is_taken_off(model):
    wanted = lists(model.generator.generate([[5, 6], [7, 8, 9], [], [3]], max_length=6, seed=2))
    ids = np.array([[0, 0, 5, 6], [7, 8, 9, 0], [0, 0, 0, 0], [0, 0, 0, 3]])
    mask = [[0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 1, 1]]  # the last row has the start id too
    rows = model.generate(ids, max_length=6, seed=2, padding_mask=mask)
    assert [row.tolist() for row in rows] == wanted


def test_log_probabilities_are_those_of_one_pass(model):
    prompts = PROMPTS[:3]
    rows = eager(model).generate(prompts, max_length=7, seed=4, strategy=Sampling(top_k=5))
    for (row, own, _), prompt in zip(rows, prompts, strict=True):
        logits = ops.convert_to_numpy(model(np.array([[0, *row[:-1]]])))[0].astype("float64")
        logits[:, 0] = -1e30  # padding is never drawn, and has no probability
        whole = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        whole -= logits.max(-1, keepdims=True)
        wanted = np.take_along_axis(whole, row[:, None], axis=-1)[:, 0]
        np.testing.assert_allclose(own, wanted[len(prompt) :], atol=1e-5)


def test_pieces_of_a_stream_are_what_generate_returns(model):
    settings = {"max_length": 30, "seed": 5, "tokenizer": ByteTokenizer(), "stop_token_ids": None}
    for prompt in ("é", b"\xc3", ""):
        wanted = model.generate(prompt, **settings)
        pieces = list(model.stream(prompt, **settings))
        assert "".join(pieces) == wanted and len(pieces) > 10 and all(pieces)
    pieces = list(model.stream([5, 6], max_length=30, seed=5, chunk_size=8, stop_token_ids=None))
    assert [len(piece) for piece in pieces] == [2, 8, 8, 8, 4]
    np.testing.assert_array_equal(np.concatenate(pieces), model.generate([5, 6], 30, seed=5, stop_token_ids=None))


@pytest.mark.full
def test_a_small_vocabulary_of_a_multiple_of_eight_compiles_with_full_effort(run_python):
    # An argmax fused with its noise took XLA's compiler minutes there, but not at the effort of the other tests.
    code = """
import json
import signal
import tf_sparse_attention as tsa
from tf_sparse_attention.models.generator import Generator
signal.alarm(120)
part = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}
model = tsa.models.LanguageModel(tsa.models.Backbone(48, 1, 8, [part], intermediate_dim=8, seed=0))
results = []
for run_eagerly in (False, True):
    model._generator = Generator(model, run_eagerly)
    results += [model.generate([3, 4], max_length=6, stop_token_ids=None, seed=seed).tolist() for seed in range(4)]
print(json.dumps(results))
"""
    results = json.loads(run_python(code, XLA_FLAGS=""))
    assert all(len(result) == 6 and result[:2] == [3, 4] and min(result) > 0 for result in results)
    assert results[:4] == results[4:]  # compiled and not
    assert len({tuple(result) for result in results[:4]}) > 1
