"""Text from a language model: the compiled loop against a slow one, prompts, seeds and what is refused."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.data import ByteTokenizer
from tf_sparse_attention.generation import generate, sample
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.generation import Generator, full_pass_step, generate_ids, generate_text

LOCAL = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 6, "position": "rotary"}
ROUTING = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 3, "cluster_size": 4}
PROMPTS = [[74, 107], [], [5, 200, 9, 9, 31], [40] * 11]


def make_model(attention=(LOCAL, ROUTING), vocabulary_size=258, **settings):
    keras.utils.set_random_seed(3)
    backbone = Backbone(
        vocabulary_size=vocabulary_size,
        num_layers=1,
        hidden_dim=16,
        attention=list(attention),
        intermediate_dim=32,
        seed=3,
        **settings,
    )
    model = LanguageModel(backbone, dtype=settings.get("dtype"))
    for weight in model.trainable_weights:
        # Far from the start, where all tokens are about as likely.
        weight.assign(3 * weight if "kernel" in weight.path else weight)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def generator(model):
    return Generator(model)


def slow_greedy(model, prompt, max_length, stop_id=1):
    """The most likely continuation, each token from a pass over the tokens so far and nothing else."""
    ids = list(prompt)
    while len(ids) < max_length and not (len(ids) > len(prompt) and ids[-1] == stop_id):
        logits = keras.ops.convert_to_numpy(model(np.array([[0, *ids]], "int32")))[0, -1]
        ids.append(int(logits[1:].argmax()) + 1)
    return ids


def eager(model, prompt, max_length, sampler):
    """Generation for one prompt without compiling anything, so that each call is cheap."""
    buffer = np.zeros((1, max_length + 3), "int32")
    buffer[0, : len(prompt)] = prompt
    ids, lengths = generate(full_pass_step(model), buffer, [len(prompt)], max_length, sampler)
    return ops.convert_to_numpy(ids)[0, : int(lengths[0])].tolist()


def lists(rows):
    return [row.tolist() for row in rows]


def test_greedy_generation_equals_a_pass_for_each_token(model, generator):
    rows = generator.generate(PROMPTS, max_length=14, temperature=0.0)
    assert lists(rows) == [slow_greedy(model, prompt, 14) for prompt in PROMPTS]


def test_each_greedy_token_is_the_best_of_one_pass_over_the_text(model, generator):
    rows = generator.generate(PROMPTS, max_length=14, temperature=0.0, stop_id=None)
    inputs = np.pad(np.stack(rows)[:, :-1], [(0, 0), (1, 0)])
    best = model.predict_on_batch(inputs)[..., 1:].argmax(-1) + 1
    for row, wanted, prompt in zip(rows, best, PROMPTS, strict=True):
        np.testing.assert_array_equal(row[len(prompt) :], wanted[len(prompt) :])


@pytest.mark.filterwarnings("ignore:.*top_k")
@pytest.mark.parametrize("selection", ["nearest", "top_k"])
def test_a_step_depends_on_the_tokens_so_far_alone(selection):
    model = make_model([LOCAL, {**ROUTING, "selection": selection}])
    inputs = np.random.default_rng(0).integers(1, 258, (3, 20)).astype("int32")
    logits, _ = full_pass_step(model)(inputs, np.array([4, 19, 11], "int32"), ())
    for row, at in enumerate((4, 19, 11)):
        alone = ops.convert_to_numpy(model(inputs[row : row + 1, : at + 1]))[0, -1]
        np.testing.assert_allclose(ops.convert_to_numpy(logits)[row, 1:], alone[1:], atol=1e-5)


def test_a_row_stops_at_the_stop_id(generator):
    whole = lists(generator.generate(PROMPTS, max_length=30, temperature=0.0, stop_id=None))
    assert {len(row) for row in whole} == {30}
    stop_id = whole[1][5]
    cut = lists(generator.generate(PROMPTS, max_length=30, temperature=0.0, stop_id=stop_id))
    assert cut[1] == whole[1][: whole[1].index(stop_id) + 1]


def test_all_prompts_lengths_seeds_and_settings_share_one_program(generator):
    generator.generate(PROMPTS, max_length=14)
    step, traces = generator.step, []
    generator.step = lambda *arguments: traces.append(1)
    try:
        generator.generate(PROMPTS[::-1], 50, temperature=0.5, top_k=3, top_p=0.9, seed=[7, 8, 9, 9], stop_id=None)
    finally:
        generator.step = step
    assert not traces


def test_a_row_does_not_depend_on_its_batch_mates(generator):
    rows = lists(generator.generate(PROMPTS, max_length=14, seed=5))
    assert lists(generator.generate([PROMPTS[0], [9], [], [7, 7]], max_length=14, seed=5))[0] == rows[0]


def test_rows_with_seeds_of_their_own_may_stand_anywhere(generator):
    rows = lists(generator.generate([[74]] * 4, max_length=12, seed=[1, 2, 3, 4]))
    assert lists(generator.generate([[74]] * 4, max_length=12, seed=[4, 3, 2, 1])) == rows[::-1]
    assert rows[0] != rows[1]


def test_seeds_count_modulo_two_to_the_32(generator):
    rows = lists(generator.generate(PROMPTS, max_length=14, seed=[2**32 - 5, 2**40 + 7, 0, 2**31]))
    assert lists(generator.generate(PROMPTS, max_length=14, seed=[-5, 7, 2**32, -(2**31)])) == rows


def test_padding_is_never_generated():
    model = make_model(vocabulary_size=3)
    model.to_vocabulary.bias.assign([9.0, 0.0, 0.0])
    row = eager(model, [], 12, functools.partial(sample, temperature=5.0))
    assert set(row) == {1, 2}


def test_settings_reach_the_sampler_uncast_under_a_half_precision_policy(model):
    keras.config.set_dtype_policy("mixed_bfloat16")  # Set back by the fixture of all tests.
    generator, seen = Generator(model), []
    generator.call = lambda inputs: seen.append(inputs["temperature"].dtype)
    generator({"temperature": np.float32(0.3)})
    assert seen == ["float32"]


def test_generation_leaves_all_state_untouched(model, generator):
    before = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    generator.generate(PROMPTS, max_length=14)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value)


def test_text_goes_in_and_out(generator):
    texts = generate_text(generator, ByteTokenizer(), ["Hi ", b"\xff", "", "é"], max_length=12, seed=1)
    assert texts[0].startswith("Hi ")
    assert texts[1].startswith("\ufffd")
    ids = generate_ids(generator, [[74, 107, 34], [257], [], [197, 171]], max_length=12, seed=1)
    assert texts == [ByteTokenizer().detokenize(row) for row in ids]


@pytest.mark.parametrize("prompt", [[258], [-1], [1.5], [[3]], "text"])
def test_a_prompt_that_is_not_of_ids_of_the_vocabulary_is_refused(generator, prompt):
    with pytest.raises(ValueError, match=r"`prompts` must be sequences of integers in \[0, 258\)\. Received: prompt="):
        generator.generate([[1], prompt], max_length=9)


def test_a_prompt_that_is_too_long_is_refused(generator):
    with pytest.raises(ValueError, match=r"`max_length` must be at least .* max_length=3, a prompt of 4 tokens"):
        generator.generate([[1], [1, 2, 3, 4]], max_length=3)


@pytest.mark.parametrize("max_length", [0, 2.5])
def test_a_length_that_is_no_positive_integer_is_refused(generator, max_length):
    with pytest.raises(ValueError, match=r"`max_length` must be a positive integer\. Received: max_length="):
        generator.generate([[]], max_length=max_length)


def test_no_prompts_are_refused(generator):
    with pytest.raises(ValueError, match=r"`prompts` must hold at least one prompt\. Received: prompts=\[\]"):
        generator.generate([], max_length=3)


@pytest.mark.parametrize("seed", [1.5, [1, 2, 3], None])
def test_a_seed_that_is_no_integer_or_one_a_row_is_refused(generator, seed):
    with pytest.raises(ValueError, match=r"`seed` must be an integer or one for each of 2 rows\. Received: seed="):
        generator.generate([[], []], max_length=3, seed=seed)


def test_a_setting_out_of_range_is_refused(generator):
    with pytest.raises(ValueError, match="`top_p` must be"):
        generator.generate([[]], max_length=3, top_p=0)


def test_one_text_in_place_of_a_list_is_refused(model):
    with pytest.raises(ValueError, match=r"`prompts` must be a list of texts\. Received: prompts='Hi'"):
        generate_text(model, ByteTokenizer(), "Hi", max_length=3)


def test_a_generator_takes_language_models_alone():
    with pytest.raises(ValueError, match=r"`model` must be a `LanguageModel`\. Received: model=<Sequential"):
        Generator(keras.Sequential([keras.layers.Dense(3)]))


def test_a_small_vocabulary_of_a_multiple_of_eight_compiles_with_full_effort(run_python):
    # An argmax fused with its noise took XLA's compiler minutes there, but not at the effort of the other tests.
    code = """
import signal
import tf_sparse_attention as tsa
signal.alarm(120)
part = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}
model = tsa.models.LanguageModel(tsa.models.Backbone(48, 1, 8, [part], intermediate_dim=8))
print(len(tsa.models.generate_ids(model, [[3, 4]], max_length=6)[0]))
"""
    assert int(run_python(code, XLA_FLAGS="")) <= 6
